# SPDX-License-Identifier: Apache-2.0
"""A guest that has taken over its agent's end of the link and lies to the host: it costs only its own sandbox."""
import os
import resource

import pytest

# Root in the guest takes the agent's descriptor of the port and writes what it likes.
TAKE_OVER = """
import ctypes, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def port():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            for fd in os.listdir(f'/proc/{pid}/fd'):
                if 'vport' in os.readlink(f'/proc/{pid}/fd/{fd}'):
                    return libc.syscall(438, libc.syscall(434, int(pid), 0), int(fd), 0)
        except OSError:
            pass
link = port()
assert link >= 0
os.set_blocking(link, True)
def frame(body, stream, kind, channel=0, flags=0, size=None):
    return struct.pack('<IIBBH', len(body) if size is None else size, stream, kind, channel, flags) + body
def send(data):
    while data:
        data = data[os.write(link, data):]
"""

LIES = {
    "random bytes": "send(os.urandom(100000))",
    "text": "send(b'HTTP/1.1 200 OK\\r\\n\\r\\n')",
    "length of 4 GiB": "send(frame(b'', 1, 5, 1, size=0xffffffff))",
    "unknown kind": "send(frame(b'x', 1, 200))",
    "unknown flag": "send(frame(b'x', 2, 5, 1, flags=0x8000))",
    "stream that is not open": "send(frame(b'x', 77, 5, 1))",
    "reply for another stream": "send(frame(b'', 77, 3))",
    "second hello": "send(frame(struct.pack('<BBQ', 1, 1, 1) + struct.pack('<BBI', 2, 2, 1) + b'x', 0, 1))",
    "data without credit": "\nfor i in range(2000): send(frame(b'x' * 32000, 2, 5, 1))",
    "credit without end": "send(frame(struct.pack('<I', 0xffffffff), 2, 7))",
    "endless reply": "\nfor i in range(2000): send(frame(b'x' * 32000, 2, 3, 0, 1))",
    "failure of the platform": "send(frame(struct.pack('<BBQ', 1, 1, 300) + struct.pack('<BBI', 3, 2, 4) + b'lies', 2, 4))",
    "malformed reply": "send(frame(b'\\x09\\x09', 2, 3))",
    "request to the host": "send(frame(b'', 2, 2))",
}


@pytest.mark.parametrize("lie", LIES)
def test_lie_ends_the_sandbox_with_an_error(sandbox, lie):
    done = sandbox.run("run", "python", "--", "python3", "-c", TAKE_OVER + LIES[lie] + "\ntime.sleep(30)", timeout=60)
    assert done.returncode == 125, (done.stdout, done.stderr)
    assert b"error: [S300]" in done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 << 20  # kilobytes: nothing grew without bounds


def test_endless_archive_is_cut_off(sandbox, tmp_path):
    """--out from a guest that sends tar for ever: bounded by what its disk and image hold."""
    lie = """
header = (b'x' + b'\\0' * 99 + b'0000644\\0' + b'0000000\\0' * 2 + b'77777777777\\0' + b'0' * 12 + b' ' * 8 + b'0').ljust(512, b'\\0')
header = header[:148] + b'%06o\\0 ' % sum(header) + header[156:]
import threading
def flood():
    time.sleep(1.5)
    send(frame(header, 3, 5, 1))
    while True: send(frame(os.urandom(32000), 3, 5, 1))
if os.fork() == 0:
    flood()
"""
    done = sandbox.run("run", "--disk", "16", "--out", f"/etc/hostname:{tmp_path}/x", "python", "--", "python3", "-c", TAKE_OVER + lie, timeout=120)
    assert done.returncode in (0, 125)  # whichever comes first: the honest answer, or the lie
    assert sum(os.path.getsize(os.path.join(tmp_path, name)) for name in os.listdir(tmp_path)) < 1 << 30


def test_neighbour_is_not_hurt(sandbox):
    with sandbox.start("run", "python", "--", "sh", "-c", "echo up; read x; echo got $x") as neighbour:
        assert neighbour.stdout.readline() == b"up\n"
        assert sandbox.run("run", "python", "--", "python3", "-c", TAKE_OVER + LIES["random bytes"] + "\ntime.sleep(30)").returncode == 125
        neighbour.stdin.write(b"it\n")
        neighbour.stdin.flush()
        assert neighbour.stdout.readline() == b"got it\n"


def test_guest_that_kills_its_agent_ends_itself(sandbox):
    script = "import os, signal\nfor p in filter(str.isdigit, os.listdir('/proc')):\n  if int(p) not in (1, os.getpid()):\n    try: os.kill(int(p), 9)\n    except OSError: pass\nimport time; time.sleep(30)"
    done = sandbox.run("run", "python", "--", "python3", "-c", script, timeout=60)
    assert done.returncode == 125 and b"[S300]" in done.stderr


@pytest.mark.parametrize("way", ["b", "c", "o"])
def test_guest_that_resets_or_panics_ends_itself(sandbox, way):
    done = sandbox.run("run", "python", "--", "sh", "-c", f"echo 1 > /proc/sys/kernel/sysrq; echo {way} > /proc/sysrq-trigger; sleep 30", timeout=60)
    assert done.returncode == 125 and b"[S300]" in done.stderr

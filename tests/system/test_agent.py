# SPDX-License-Identifier: Apache-2.0
"""The agent in a real guest, spoken to frame by frame (guest.py): what `iii-sandbox run` cannot show from outside."""
import hashlib
import io
import os
import random
import subprocess
import tarfile
import time

import pytest

from guest import WINDOW, Failure, Guest


@pytest.fixture(scope="session")
def machine(prepared_sandbox):
    """Boots guests from what the store has."""
    store = prepared_sandbox.store
    with open(os.path.join(store, "kernels", "current")) as f:
        kernel = os.path.join(store, "kernels", f.read().strip())
    with open(os.path.join(store, "images", "python")) as f:
        digest = dict(line.rstrip("\n").split(" ", 1) for line in f if " " in line)["digest"]

    def boot(image=os.path.join(store, "blobs", "sha256", digest), **options):
        return Guest(kernel=os.path.join(kernel, "vmlinuz"), modules=os.path.join(kernel, "modules"), image=image,
                     agent=os.path.join(prepared_sandbox.build, "iii-sandbox-agent"), **options)

    return boot


@pytest.fixture
def guest(machine):
    with machine() as booted:
        booted.identity()
        yield booted


def test_programs_in_one_guest(guest):
    # exit codes, and what could not be executed
    assert guest.sh("exit 7").code == 7
    for number, code in ((9, 137), (15, 143), (11, 139)):
        done = guest.sh(f"kill -{number} $$")
        assert (done.code, done.signal, done.reason) == (code, number, 0)
    done = guest.run(["no-such"])
    assert (done.code, done.out, done.err) == (127, b"", b"exec: no-such: not found\n")
    guest.sh("printf hello > /tmp/text; printf '#!/no/such\\n' > /tmp/script; chmod 755 /tmp/text /tmp/script")
    assert guest.run(["/tmp/text"]).code == 126
    assert guest.run(["/tmp/script"]).err == b"exec: /tmp/script: its interpreter was not found\n"
    for cwd, code in (("/no/such", 211), ("/etc/passwd", 212)):
        with pytest.raises(Failure) as failure:
            guest.run(["touch", "/started"], cwd=cwd)
        assert failure.value.code == code
    with pytest.raises(Failure) as failure:
        guest.run(["touch", "/started"], user="no-such-user")
    assert failure.value.code == 1 and "no-such-user" in failure.value.message
    assert guest.run(["test", "-e", "/started"]).code == 1

    # users and the environment
    done = guest.run(["sh", "-c", "id -u; id -G; umask; ulimit -n; echo x > /dev/stdout; cat /proc/self/oom_score_adj"], user="nobody")
    assert done.out.split() == [b"65534", b"65534", b"0022", b"65536", b"x", b"0"]
    assert guest.run(["id", "-g"], user="1234:staff").out == b"50\n"
    assert sorted(guest.run(["env"]).out.splitlines()) == sorted([
        b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", b"HOME=/root", b"USER=root", b"LOGNAME=root",
        b"SHELL=/bin/bash"])
    value = "a\nb \"q\" 's' ä€ \\"
    assert guest.run(["printenv", "X"], env=["X=" + value]).out.decode() == value + "\n"
    done = guest.run(["true"], env=["B=" + "y" * 200 * 1024])
    assert done.code == 126 and b"over 128 KiB" in done.err
    assert guest.sh('printf "$A$B" | wc -c', env=["A=" + "a" * 100000, "B=" + "b" * 100000]).out.strip() == b"200000"


def test_streams_in_one_guest(guest):
    done = guest.sh("head -c 1000000 /dev/zero | tr '\\0' e >&2; head -c 1000000 /dev/zero | tr '\\0' o")
    assert done.out == b"o" * 1000000 and done.err == b"e" * 1000000
    data = random.randbytes(5 << 20)
    assert guest.run(["sha256sum"], stdin=data).out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert guest.run(["cat"], stdin=data).out == data

    # a program that never reads, one that stops reading, and a host that stops reading disturb nobody
    sleeper = guest.exec(["sleep", "1000"], stdin=data)
    assert guest.run(["head", "-c", "3"], stdin=data).out == data[:3]
    held = guest.exec(["sh", "-c", "yes | head -c 3000000"], hold=True)
    guest.until(lambda: len(held.so_far) == WINDOW)
    assert guest.run(["echo", "ok"]).out == b"ok\n"
    assert len(held.so_far) == WINDOW
    held.release()
    assert len(held.wait().out) == 3000000
    sleeper.cancel()
    assert (sleeper.wait().reason, sleeper.code) == (2, 137)

    # more requests than streams: each too many is refused, the others run
    many = [guest.exec(["sleep", "3"]) for _ in range(70)]
    refused = 0
    for stream in many:
        try:
            assert stream.wait().code == 0
        except Failure as failure:
            assert failure.code == 3
            refused += 1
    assert refused == 6
    assert guest.ping(b"still here") == b"still here"


def test_terminal(guest):
    stream = guest.exec(["sh", "-c", "stty size; tty; echo $TERM; read x; echo got $x; stty size"], tty=(24, 80), stdin=True)
    guest.until(lambda: b"xterm\r\n" in stream.so_far)
    stream.resize(40, 100)
    stream.send(b"hello\n")
    stream.wait()
    assert stream.out.split() == [b"24", b"80", b"/dev/pts/0", b"xterm", b"hello", b"got", b"hello", b"40", b"100"]
    for _ in range(10):  # ^C typed before the program is there is not lost
        stream = guest.exec(["cat"], tty=(24, 80), stdin=True)
        stream.send(b"\x03")
        assert stream.wait(10).code == 130
    assert guest.run(["cat"], tty=(24, 80), stdin=b"abc\n").out == b"abc\r\nabc\r\n"
    assert len(guest.run(["python3", "-c", "print('x' * 200000)"], tty=(24, 80)).out) == 200002
    begin = time.monotonic()
    assert guest.run(["sh", "-c", "trap '' HUP; sleep 100 & echo background"], tty=(24, 80)).out == b"background\r\n"
    assert time.monotonic() - begin < 5


def test_trees_of_processes(guest):
    begin = time.monotonic()
    done = guest.sh("sleep 300 & echo hi", timeout_ms=20000)
    assert (done.out, done.code, done.reason) == (b"hi\n", 0, 0) and time.monotonic() - begin < 10
    assert guest.sh("pgrep -xf 'sleep 300' | wc -l").out == b"1\n"  # the orphan goes on

    done = guest.sh("echo before; (trap '' TERM; while :; do date >> /tmp/t; sleep 0.2; done) & "
                    "setsid sh -c 'trap \"\" TERM; sleep 1000' & wait", timeout_ms=1500)
    assert (done.reason, done.code, done.out) == (1, 137, b"before\n")
    assert guest.sh("pgrep -xf 'sleep 1000'").code == 1
    size = guest.sh("stat -c %s /tmp/t").out
    assert guest.sh("sleep 1; stat -c %s /tmp/t").out == size

    done = guest.sh("i=0; while [ $i -lt 5000 ]; do (: &); i=$((i + 1)); done; echo done", seconds=300)
    assert done.out == b"done\n"
    assert guest.sh("sleep 0.5; ps ax -o stat= | grep -c Z").out == b"0\n"

    bomb = guest.exec(["sh", "-c", "f() { f | f & }; f; wait; sleep 1000"], timeout_ms=5000)
    guest.until(lambda: guest.sh("cat /sys/fs/cgroup/exec/pids.current").out > b"500" or bomb.done, 30)
    assert guest.run(["echo", "alive"]).out == b"alive\n"
    assert bomb.wait().reason == 1
    assert guest.sh("ps ax | wc -l").code == 0


def test_memory_and_disk_run_out(guest):
    done = guest.run(["python3", "-c", "x = []\nwhile 1: x.append(bytearray(10 << 20))"], seconds=120)
    assert (done.code, done.oom) == (137, 1)
    assert guest.run(["echo", "on"]).out == b"on\n"
    done = guest.run(["dd", "if=/dev/zero", "of=/big", "bs=1M"], seconds=120)
    assert done.code == 1 and b"No space left on device" in done.err
    assert guest.sh("rm /big; echo y > /tmp/after; cat /tmp/after").out == b"y\n"


def test_tar_in_and_out(guest):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content, link in (("d", tarfile.DIRTYPE, b"", ""), ("d/f", tarfile.REGTYPE, b"hello", ""),
                                          ("d/l", tarfile.SYMTYPE, b"", "f"), ("d/h", tarfile.LNKTYPE, b"", "d/f"),
                                          ("d/" + "n" * 200, tarfile.REGTYPE, bytes(3 << 20), "")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname, entry.mode, entry.mtime = kind, len(content), link, 0o4755, 1000000000
            tar.addfile(entry, io.BytesIO(content))
    guest.tar_in("/tmp/a/b", packed.getvalue(), make_parents=True)
    assert guest.sh("cd /tmp/a/b/d && stat -c '%h %a %Y %U' f && readlink l && cat h").out == b"2 4755 1000000000 root\nf\nhello"
    with tarfile.open(fileobj=io.BytesIO(guest.tar_out("/tmp/a/b/d", "top"))) as tar:
        assert len(tar.getnames()) == 5 and tar.getmember("top/" + "n" * 200).size == 3 << 20
        assert tar.getmember("top/l").linkname == "f"
        assert {tar.getmember("top/f").type, tar.getmember("top/h").type} == {tarfile.REGTYPE, tarfile.LNKTYPE}
    for path, data, code in (("/no/such", packed.getvalue(), 211), ("/etc/passwd", packed.getvalue(), 212),
                             ("/tmp", packed.getvalue()[:5000], 218), ("/tmp", b"x" * 1024, 210)):
        with pytest.raises(Failure) as failure:
            guest.tar_in(path, data)
        assert failure.value.code == code
    with pytest.raises(Failure) as failure:
        guest.tar_out("/no/such")
    assert failure.value.code == 211


def test_identity_is_the_hosts(guest):
    guest.identity(hostname="box-1", boot_id="01234567-89ab-cdef-0123-456789abcdef", machine_id="0123456789abcdef" * 2)
    assert guest.sh("hostname; cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id").out.split() == [
        b"box-1", b"box-1", b"0123456789abcdef" * 2, b"01234567-89ab-cdef-0123-456789abcdef"]
    assert b"127.0.1.1 box-1\n" in guest.run(["cat", "/etc/hosts"]).out
    guest.sh("date -s 2001-01-01")  # the next request sets it right
    assert abs(float(guest.run(["date", "+%s.%N"]).out) - time.time()) < 2
    with pytest.raises(Failure) as failure:
        guest.identity(hostname="not a name")
    assert failure.value.code == 1


def test_shutdown_leaves_a_clean_disk(guest):
    stubborn = guest.exec(["sh", "-c", "trap '' TERM; exec 3> /tmp/held; echo up; while :; do echo x >&3; sleep 0.01; done"])
    guest.until(lambda: stubborn.so_far)
    guest.sh("echo kept > /kept")
    begin = time.monotonic()
    guest.shutdown().wait(10)
    assert time.monotonic() - begin < 5
    assert guest.ended() == 0 and guest.panic is None
    assert subprocess.run(["e2fsck", "-fn", guest.disk], capture_output=True).returncode == 0


def test_failures_end_the_machine_and_say_why(machine, tmp_path):
    with machine() as guest:
        guest.exec(["sh", "-c", "kill -9 $(pgrep -P 1 init)"])
        assert guest.ended() == 0 and guest.panic == "the agent's link process was killed"
    with machine() as guest:
        guest.put(b"\xff" * 100)
        assert guest.ended() == 0 and "unknown kind 255" in guest.panic
    broken = tmp_path / "broken"
    broken.write_bytes(bytes(1 << 20))
    with machine(image=str(broken), wait=False) as guest:
        assert guest.ended(60) == 0 and "/dev/vda" in guest.panic
        assert "mount /dev/vda" in guest.console()

# SPDX-License-Identifier: Apache-2.0
"""`iii-sandbox run` as a person uses it: each test boots real machines."""
import hashlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

IMAGE = "python"


def shell(sandbox, script, **options):
    return sandbox.run("run", *options.pop("flags", []), IMAGE, "--", "sh", "-c", script, **options)


# --- exit status ---


@pytest.mark.parametrize(
    "command, status, message",
    [
        (["true"], 0, b""),
        (["sh", "-c", "exit 7"], 7, b""),
        (["/etc/passwd"], 126, b"exec: /etc/passwd: permission denied\n"),
        (["no-such-program"], 127, b"exec: no-such-program: not found\n"),
        (["sh", "-c", "kill -9 $$"], 137, b""),
        (["sh", "-c", "kill -15 $$"], 143, b""),
        (["sh", "-c", "kill -11 $$"], 139, b""),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_exit_status_is_the_programs(sandbox, command, status, message):
    done = sandbox.run("run", IMAGE, "--", *command)
    assert (done.returncode, done.stderr, done.stdout) == (status, message, b"")


def test_script_without_interpreter_line_is_126(sandbox):
    done = shell(sandbox, "echo 'echo x' > /tmp/s; chmod 755 /tmp/s; exec python3 -c 'import os; os.execv(\"/tmp/s\", [\"/tmp/s\"])'")
    assert done.returncode == 1 and b"Exec format error" in done.stderr  # what a program itself sees
    # and what the agent says of its own exec: a text file that is executable, in the image
    done = sandbox.run("run", IMAGE, "--", "/usr/lib/python3.11/os.py")
    assert done.returncode == 126 and b"exec: /usr/lib/python3.11/os.py: " in done.stderr


def test_bad_workdir_and_unknown_user_start_nothing(sandbox):
    done = sandbox.run("run", "--workdir", "/no/such", IMAGE, "--", "touch", "/x")
    assert done.returncode == 125
    assert re.match(rb"error: \[S211\] .*/no/such", done.stderr)
    done = sandbox.run("run", "--workdir", "/etc/passwd", IMAGE, "--", "true")
    assert done.returncode == 125 and b"[S212]" in done.stderr
    done = sandbox.run("run", "--user", "nosuchuser", IMAGE, "--", "true")
    assert done.returncode == 125 and b"[S001]" in done.stderr and b"nosuchuser" in done.stderr


# --- the streams ---


@pytest.mark.smoke
def test_both_streams_are_exact_and_apart(sandbox):
    done = shell(sandbox, "head -c 1000000 /dev/zero | tr '\\0' e >&2; head -c 1000000 /dev/zero | tr '\\0' o")
    assert done.returncode == 0
    assert done.stdout == b"o" * 1000000
    assert done.stderr == b"e" * 1000000


def test_both_streams_at_once(sandbox):
    done = shell(sandbox, "(head -c 1000000 /dev/zero | tr '\\0' e >&2) & head -c 1000000 /dev/zero | tr '\\0' o; wait")
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (0, 1000000, 1000000)


@pytest.mark.smoke
def test_binary_goes_in_and_out_byte_for_byte(sandbox):
    content = os.urandom(5 << 20)
    done = sandbox.run("run", IMAGE, "--", "sha256sum", stdin=content)
    assert done.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()
    done = sandbox.run("run", IMAGE, "--", "cat", stdin=content)
    assert done.returncode == 0 and done.stdout == content


def test_stdin_that_nobody_reads_does_not_hang(sandbox):
    done = shell(sandbox, "sleep 1; echo done", stdin=os.urandom(5 << 20))
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_empty_stdin_ends_at_once(sandbox):
    assert sandbox.run("run", IMAGE, "--", "cat", stdin=b"").returncode == 0
    done = subprocess.run([sandbox.program, "run", IMAGE, "--", "wc", "-c"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=sandbox.env, timeout=60)
    assert done.stdout.strip() == b"0"


def test_output_and_input_flow_while_it_runs(sandbox):
    with sandbox.start("run", IMAGE, "--", "sh", "-c", "echo first; while read x; do echo got $x; done") as child:
        assert child.stdout.readline() == b"first\n"
        child.stdin.write(b"one\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"got one\n"
        child.stdin.close()
        assert child.wait(30) == 0


def test_reader_that_goes_away_ends_the_command(sandbox):
    with sandbox.start("run", IMAGE, "--", "yes") as child:
        assert child.stdout.readline() == b"y\n"
        child.stdout.close()
        assert child.wait(30) == 141


def test_reader_that_goes_away_ends_a_command_that_ignores_it(sandbox):
    with sandbox.start("run", IMAGE, "--", "python3", "-c", "import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN)\nwhile True: print(1)") as child:
        assert child.stdout.readline() == b"1\n"
        child.stdout.close()
        assert child.wait(30) == 141


def test_slow_reader_gets_everything_although_the_time_limit_passes(sandbox):
    with sandbox.start("run", "--timeout", "3s", IMAGE, "--", "head", "-c", "380000", "/dev/zero") as child:
        assert len(child.stdout.read(1000)) == 1000
        time.sleep(7)  # the program has ended long ago; nobody reads
        assert len(child.stdout.read()) == 379000
        assert child.wait(30) == 0


def test_full_output_disk_is_told(sandbox):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sandbox.program, "run", IMAGE, "--", "echo", "x"], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=sandbox.env, timeout=60)
    assert done.returncode == 125
    assert b"write standard output: No space left on device" in done.stderr


def test_background_child_does_not_hold_the_answer(sandbox):
    began = time.monotonic()
    sandbox.run("run", IMAGE, "--", "true")
    plain = time.monotonic() - began
    began = time.monotonic()
    done = shell(sandbox, "sleep 300 & echo hi")
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    assert time.monotonic() - began < 2 * plain + 2  # the whole run; the answer itself comes at once


# --- limits ---


@pytest.mark.smoke
def test_deadline_kills_children_that_ignore_term_and_keeps_output(sandbox):
    script = "echo before; (trap '' TERM; while :; do sleep 0.1; done) & wait"
    done = shell(sandbox, script, flags=["--timeout", "1s"])
    assert done.returncode == 124
    assert done.stdout == b"before\n"
    assert b"[S200]" in done.stderr and b"1000 ms" in done.stderr


def test_five_thousand_orphans_are_reaped(sandbox):
    script = """i=0; while [ $i -lt 5000 ]; do (: &); i=$((i+1)); done
    for try in 1 2 3 4 5 6 7 8 9 10; do n=$(ps -e -o stat= | grep -c Z); [ $n = 0 ] && break; sleep 0.5; done; echo zombies $n"""
    done = shell(sandbox, script, timeout=240)
    assert done.stdout == b"zombies 0\n"


def test_fork_bomb_ends_with_an_answer(sandbox):
    done = shell(sandbox, "bomb() { bomb | bomb & }; bomb; sleep 2; echo alive", flags=["--timeout", "20s"], timeout=120)
    assert done.returncode in (0, 2, 124)  # the shell may itself fail to fork


def test_out_of_memory_ends_with_137(sandbox):
    done = sandbox.run("run", "--memory", "256", IMAGE, "--", "python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))", timeout=120)
    assert done.returncode == 137
    assert b"ran out of memory (--memory 256)" in done.stderr


def test_full_guest_disk_is_enospc_and_recovers(sandbox):
    script = "dd if=/dev/zero of=/big bs=1M 2>&1 | grep -o 'No space left on device'; rm /big; echo again > /small && cat /small"
    done = shell(sandbox, script, flags=["--disk", "64"])
    assert done.stdout == b"No space left on device\nagain\n"


def test_memory_and_cpus_reach_the_guest(sandbox):
    done = shell(sandbox, "nproc; grep MemTotal /proc/meminfo", flags=["--memory", "1024", "--cpus", "2"])
    lines = done.stdout.split(b"\n")
    assert lines[0] == b"2"
    assert 900_000 < int(lines[1].split()[1]) <= 1024 * 1024


# --- environment, user, identity ---


def test_environment_values_arrive_unchanged(sandbox):
    values = {"NL": "a\nb\n", "Q": "\"'`$HOME\\", "U": "grüße €", "E": "", "EQ": "a=b=c", "BIG1": "x" * 100 * 1024, "BIG2": "y" * 100 * 1024}
    flags = [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
    script = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(os.environ[n]) for n in %r.split()))" % " ".join(values)
    done = sandbox.run("run", *flags, IMAGE, "--", "python3", "-c", script)
    assert done.stdout == b"\0".join(value.encode() for value in values.values())


def test_environment_holds_nothing_of_ours(sandbox):
    done = sandbox.run("run", IMAGE, "--", "env", "-0", env={"III_SECRET": "x", "LD_PRELOAD_X": "y"})
    names = {item.split(b"=")[0].decode() for item in done.stdout.split(b"\0") if item}
    assert {"PATH", "HOME", "LANG"} <= names
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_ROOT_USER_ACTION"}
    assert b"HOME=/root\0" in done.stdout


def test_user_and_workdir(sandbox):
    done = shell(sandbox, "id -un; id -gn; pwd; echo $HOME", flags=["--user", "nobody", "--workdir", "/tmp"])
    assert done.stdout == b"nobody\nnogroup\n/tmp\n/nonexistent\n"
    done = shell(sandbox, "id -u; id -g", flags=["--user", "1234:5678"])
    assert done.stdout == b"1234\n5678\n"


@pytest.mark.smoke
def test_each_machine_is_its_own(sandbox):
    script = "cat /proc/sys/kernel/random/boot_id /etc/machine-id /proc/sys/kernel/random/uuid; hostname; head -c 16 /dev/urandom | xxd -p; date +%s"
    began = time.time()
    first, second = shell(sandbox, script).stdout.split(), shell(sandbox, script).stdout.split()
    assert len(first) == 6
    for one, other in zip(first[:5], second[:5]):
        assert one != other
    assert began - 1 <= int(first[5]) <= time.time() + 1


def test_nothing_is_seen_by_another_run(sandbox):
    results = {}

    def one(name):
        results[name] = shell(sandbox, f"touch /root/{name} /tmp/{name} /var/{name}; sleep 2; ls /root /tmp /var").stdout

    threads = [threading.Thread(target=one, args=(name,)) for name in ("aaaa", "bbbb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["aaaa"].count(b"aaaa") == 3 and b"bbbb" not in results["aaaa"]
    assert results["bbbb"].count(b"bbbb") == 3 and b"aaaa" not in results["bbbb"]
    after = shell(sandbox, "ls /root /tmp /var").stdout
    assert b"aaaa" not in after and b"bbbb" not in after


def test_network_is_off(sandbox):
    script = """import os, socket
print(os.listdir('/sys/class/net'))
try:
    socket.create_connection(('1.1.1.1', 53), 5)
except OSError as e:
    print(e.errno == 101)
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); socket.create_connection(s.getsockname()); print('loopback')"""
    assert sandbox.run("run", IMAGE, "--", "python3", "-c", script).stdout == b"['lo']\nTrue\nloopback\n"


# --- scripts, terminal, signals ---


def test_language_runs_a_local_script(sandbox, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv, sys.stdin.read())")
    done = sandbox.run("run", "--lang", "python", IMAGE, str(script), "--", "a b", "c", stdin=b"input")
    assert done.stdout == b"['/tmp/run.py', 'a b', 'c'] input\n"
    done = sandbox.run("run", "--lang", "shell", IMAGE, "-", "--", "x", stdin=b"echo $0 $1; cat")
    assert done.stdout == b"/tmp/run.sh x\n"
    done = sandbox.run("run", "--lang", "python", IMAGE, "-", stdin=b"# " + b"x" * 3_000_000 + b"\nprint('end')")
    assert done.stdout == b"end\n"


def test_script_from_a_socket(sandbox):
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"print('from a socket')")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run([sandbox.program, "run", "--lang", "python", IMAGE, "-"], stdin=theirs, capture_output=True, env=sandbox.env, timeout=60)
    theirs.close()
    assert (done.returncode, done.stdout) == (0, b"from a socket\n")


def test_missing_script_is_a_usage_error(sandbox):
    done = sandbox.run("run", "--lang", "python", IMAGE, "/no/such.py")
    assert done.returncode == 2 and b"/no/such.py" in done.stderr


def test_terminal(sandbox):
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    child = subprocess.Popen([sandbox.program, "run", "-t", IMAGE, "--", "sh", "-c", "tty; stty size; trap 'echo int' INT; echo go; read x; stty size; echo got $x; exit 5"], stdin=slave, stdout=slave, stderr=slave, env=sandbox.env, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    seen = b""

    def until(text):
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 4096)

    until(b"go\r\n")
    assert b"/dev/pts/0" in seen and b"33 101" in seen
    assert b"ready in " in seen  # progress and time show on a terminal
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 90, 0, 0))
    os.kill(child.pid, signal.SIGWINCH)
    time.sleep(0.5)  # the resize has no answer to wait for
    os.write(master, b"hello\r")
    until(b"got hello")
    assert b"44 90" in seen
    assert child.wait(30) == 5
    os.close(master)


def test_interrupt_goes_to_the_command_then_ends_the_machine(sandbox):
    script = "import time, sys\ntry:\n  print('up', flush=True); time.sleep(60)\nexcept KeyboardInterrupt:\n  print('interrupted'); sys.exit(9)"
    with sandbox.start("run", IMAGE, "--", "python3", "-c", script) as child:
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == b"interrupted\n"
        assert child.wait(30) == 9
    with sandbox.start("run", IMAGE, "--", "sh", "-c", "trap '' INT; echo up; sleep 60; echo not") as child:
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


def test_term_ends_the_machine(sandbox):
    with sandbox.start("run", IMAGE, "--", "sh", "-c", "echo up; sleep 60") as child:
        assert child.stdout.readline() == b"up\n"
        child.terminate()
        assert child.wait(10) == 143


def test_quiet_when_not_on_a_terminal(sandbox):
    done = sandbox.run("run", IMAGE, "--", "true")
    assert (done.stdout, done.stderr) == (b"", b"")


# --- usage ---


@pytest.mark.smoke
def test_version_and_help(sandbox):
    assert re.match(rb"iii-sandbox \d+\.\d+\.\d+\n", sandbox.run("version").stdout)
    text = sandbox.run("help").stdout
    assert b"run" in text and b"version" in text
    text = sandbox.run("help", "run").stdout
    assert b"--memory" in text and b"usage: iii-sandbox run" in text
    assert sandbox.run("run", "--help").stdout == text


@pytest.mark.parametrize(
    "words, message",
    [
        (["runn"], b"did you mean run?"),
        (["run"], b"which image?"),
        (["run", "--memroy", "5", IMAGE], b"did you mean --memory?"),
        (["run", "--timeout", "5", IMAGE, "--", "true"], b"'5' is not a duration"),
        (["run", IMAGE, "true"], b"the guest's command goes after --"),
        (["run", "--cpus", "0", IMAGE, "--", "true"], b"below 1"),
        ([], b"usage:"),
    ],
)
def test_usage_errors_are_2(sandbox, words, message):
    done = sandbox.run(*words)
    assert done.returncode == 2 and message in done.stderr and done.stdout == b""


def test_unknown_image_is_refused(sandbox):
    done = sandbox.run("run", "no-such-image", "--", "true")
    assert done.returncode == 125
    assert b"[S100]" in done.stderr and b"no-such-image" in done.stderr and b"python" in done.stderr


# --- configuration ---


def test_configuration_gives_the_defaults(sandbox, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("default_memory_mb: 256\ndefault_cpus: 2\ndefault_disk_mb: 64\nmax_disk_mb: 100\n")
    done = shell(sandbox, "nproc; grep MemTotal /proc/meminfo; df -m / | tail -1", flags=["--config", str(config)])
    lines = done.stdout.splitlines()
    assert lines[0] == b"2" and int(lines[1].split()[1]) <= 256 * 1024 and int(lines[2].split()[1]) <= 64
    done = shell(sandbox, "true", flags=["--config", str(config), "--disk", "200"])
    assert done.returncode == 125 and b"[S400] --disk 200 is above max_disk_mb 100" in done.stderr


def test_broken_configuration_is_a_usage_error(sandbox, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("acel: auto\n")
    for words in (["run", IMAGE, "--", "true"], ["image", "ls"]):
        done = sandbox.run(*words[:1], "--config", str(config), *words[1:])
        assert done.returncode == 2 and b"config.yaml:1:1: unknown key 'acel' (did you mean accel?)" in done.stderr
        done = sandbox.run(*words[:1], "--config", str(tmp_path / "none"), *words[1:])
        assert done.returncode == 2 and b"No such file" in done.stderr


def test_custom_image_of_the_configuration(sandbox, tmp_path):
    """An image with one static program and nothing else, from a folder."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "agent").write_bytes(open(f"{sandbox.build}/iii-sandbox-agent", "rb").read())
    (tree / "agent").chmod(0o755)
    config = tmp_path / "config.yaml"
    config.write_text(f"custom_images:\n  tiny: 'dir:{tree}'\n")
    flags = ["--config", str(config)]
    done = sandbox.run("run", *flags, "tiny", "--", "/no-such-program", timeout=120)
    assert (done.returncode, done.stderr) == (127, b"exec: /no-such-program: not found\n")
    assert b"tiny" in sandbox.run("image", "ls", *flags).stdout
    assert sandbox.run("image", "rm", *flags, "tiny").returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""`run --file`, `--out` and `--json`."""
import json
import os
import stat
import subprocess

import pytest

IMAGE = "python"


def make_tree(folder):
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "plain").write_bytes(b"content\n")
    (folder / "sub" / "empty").write_bytes(b"")
    (folder / "sub" / "big").write_bytes(os.urandom(3 << 20))
    (folder / "sub" / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "sub" / "deep" / "run.sh").chmod(0o750)
    os.link(folder / "plain", folder / "sub" / "second-name")
    (folder / "link").symlink_to("sub/big")
    (folder / "dangling").symlink_to("/no/such")
    (folder / ("n" * 200)).write_text("long name")
    with open(os.fsencode(folder) + b"/\xff\xfe", "wb") as file:
        file.write(b"name that is not UTF-8")
    (folder / "read-only").mkdir()
    (folder / "read-only" / "x").write_text("x")
    (folder / "read-only").chmod(0o555)


def describe(folder):
    """What is below a folder: type, mode, content or target, and which names are one file."""
    found, inodes = {}, {}
    for path, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            full = os.path.join(path, name)
            short, info = os.path.relpath(full, os.fsencode(folder)), os.lstat(full)
            if stat.S_ISLNK(info.st_mode):
                what = os.readlink(full)
            elif stat.S_ISREG(info.st_mode):
                inodes.setdefault(info.st_ino, set()).add(short)
                with open(full, "rb") as file:
                    what = file.read()
            else:
                what = None
            found[short] = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), what)
    return found, sorted(sorted(names) for names in inodes.values())


def test_folder_goes_in_and_comes_back_the_same(sandbox, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    done = sandbox.run("run", "--file", f"{source}:/srv/tree", "--out", f"/srv/tree:{tmp_path}/back", IMAGE, "--", "/srv/tree/sub/deep/run.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ran\n", b"")
    assert describe(tmp_path / "back") == describe(source)


def test_files_and_names(sandbox, tmp_path):
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2" * 1_000_000)
    (tmp_path / "here").mkdir()
    done = sandbox.run(
        "run", "--file", f"{tmp_path}/one:/in/renamed", "--file", f"{tmp_path}/two:/in/", "--out", f"/in/two:{tmp_path}/here/",
        "--out", f"/in/renamed:{tmp_path}/three", IMAGE, "--", "sh", "-c", "ls /in; stat -c %U /in/two; echo more >> /in/renamed; exit 3")
    assert (done.returncode, done.stdout) == (3, b"renamed\ntwo\nroot\n")
    assert (tmp_path / "here" / "two").read_bytes() == b"2" * 1_000_000
    assert (tmp_path / "three").read_bytes() == b"1more\n"


def test_out_comes_back_after_a_time_limit(sandbox, tmp_path):
    done = sandbox.run("run", "--timeout", "2s", "--out", f"/tmp/x:{tmp_path}/x", IMAGE, "--", "sh", "-c", "echo partial > /tmp/x; sleep 60")
    assert done.returncode == 124
    assert (tmp_path / "x").read_bytes() == b"partial\n"


def test_missing_out_is_an_error(sandbox, tmp_path):
    done = sandbox.run("run", "--out", f"/no/such:{tmp_path}/x", IMAGE, "--", "true")
    assert done.returncode == 125 and b"/no/such" in done.stderr
    done = sandbox.run("run", "--out", f"/no/such:{tmp_path}/x", IMAGE, "--", "sh", "-c", "exit 4")
    assert done.returncode == 4 and b"/no/such" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--file", "nothing", b"LOCAL:REMOTE"),
        ("--file", "/etc/passwd:relative", b"absolute REMOTE"),
        ("--file", "/no/such/file:/x", b"/no/such/file"),
        ("--file", "/etc/passwd:/x/..", b"names no file or folder"),
        ("--out", "relative:/tmp/x", b"absolute REMOTE"),
        ("--out", "/x:/no/such/folder/x", b"/no/such/folder"),
        ("--out", "/x:/etc/passwd/y", b"/etc/passwd"),
    ],
)
def test_malformed_pairs_are_usage_errors(sandbox, flag, value, message):
    done = sandbox.run("run", flag, value, IMAGE, "--", "true")
    assert done.returncode == 2 and message in done.stderr


def test_setid_bits_and_devices_do_not_come_back(sandbox, tmp_path):
    script = "mkdir /o; cp /bin/true /o/suid; chmod 6755 /o/suid; mknod /o/null c 1 3; mkfifo /o/fifo; echo x > /o/x"
    done = sandbox.run("run", "--out", f"/o:{tmp_path}/o", IMAGE, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert stat.S_IMODE(os.stat(tmp_path / "o" / "suid").st_mode) == 0o755
    assert "null" not in os.listdir(tmp_path / "o")
    assert (tmp_path / "o" / "x").read_text() == "x\n"


def test_link_in_the_way_here_is_not_followed(sandbox, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "d").symlink_to(outside)
    done = sandbox.run("run", "--out", f"/d:{tmp_path}/target/d", IMAGE, "--", "sh", "-c", "mkdir /d; echo evil > /d/x")
    assert os.listdir(outside) == []
    assert done.returncode in (0, 125)


def test_full_local_disk_is_told(sandbox, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        done = sandbox.run("run", "--out", f"/x:{small}/x", IMAGE, "--", "sh", "-c", "head -c 3000000 /dev/urandom > /x")
    finally:
        subprocess.run(["umount", small], check=True)
    assert done.returncode == 125 and b"No space left on device" in done.stderr


def test_copy_that_stalls_ends(sandbox, tmp_path):
    """A background process of the guest stops the worker that packs: the run ends all the same."""
    script = """(while :; do for p in /proc/[0-9]*; do grep -aq 'VmSize' $p/status && [ "$(readlink $p/exe)" = /init ] && [ ${p#/proc/} -gt 60 ] && kill -STOP ${p#/proc/}; done; done) >/dev/null 2>&1 &
    head -c 1000000 /dev/zero > /x"""
    done = sandbox.run("run", "--out", f"/x:{tmp_path}/x", IMAGE, "--", "sh", "-c", script, timeout=120)
    assert done.returncode in (0, 125)


def test_json_result(sandbox):
    done = sandbox.run("run", "--json", IMAGE, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3 and done.stderr == b""
    assert (result["exit_code"], result["signal"], result["timed_out"], result["oom_killed"]) == (3, 0, False, False)
    assert (result["stdout"], result["stderr"], result["stdout_bytes"]) == ("out\n", "err\n", 4)
    assert result["ready_ms"] > 0 and "error" not in result


def test_json_result_of_binary_long_and_late(sandbox):
    result = json.loads(sandbox.run("run", "--json", IMAGE, "--", "sh", "-c", "printf '\\377\\000'; kill -9 $$").stdout)
    assert (result["exit_code"], result["signal"], result["stdout"], result["stdout_b64"]) == (137, 9, "", "/wA=")
    result = json.loads(sandbox.run("run", "--json", IMAGE, "--", "sh", "-c", "yes ä | head -c 3000001").stdout)
    assert result["stdout_truncated"] and result["stdout_bytes"] == 3000001 and "stdout_b64" not in result
    assert 1048570 < len(result["stdout"].encode()) <= 1048576
    done = sandbox.run("run", "--json", "--timeout", "1s", IMAGE, "--", "sh", "-c", "echo before; sleep 60")
    result = json.loads(done.stdout)
    assert done.returncode == 124
    assert result["timed_out"] and result["exit_code"] is None and result["stdout"] == "before\n"
    assert result["error"]["code"] == "S200" and result["error"]["type"] == "execution"


def test_json_result_of_a_failure(sandbox):
    done = sandbox.run("run", "--json", "no-such-image", "--", "true")
    result = json.loads(done.stdout)
    assert done.returncode == 125 and result["exit_code"] is None and result["error"]["code"] == "S100"

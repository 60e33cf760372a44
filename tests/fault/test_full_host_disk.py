# SPDX-License-Identifier: Apache-2.0
"""The host's disk is full while a guest writes: nothing is lost silently."""
import hashlib
import os
import subprocess
import time

import pytest

from processes import descendants

SPARE_MB = 250  # beside what is prepared in the store


@pytest.fixture
def small_store(sandbox, tmp_path):
    """A whole store on a file system of its own: folder and environment."""
    store = tmp_path / "store"
    store.mkdir()
    used_mb = int(subprocess.run(["du", "-sm", sandbox.store], capture_output=True, check=True).stdout.split()[0])
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={used_mb + SPARE_MB}m", "none", store], check=False).returncode:
        pytest.skip("needs the right to mount")
    subprocess.run(["cp", "-a", "--sparse=always", f"{sandbox.store}/.", store], check=True)
    yield store, {"III_SANDBOX_DATA_DIR": str(store)}
    for _ in range(50):
        if subprocess.run(["umount", store], capture_output=True, check=False).returncode == 0:
            break
        time.sleep(0.1)


WRITE = "head -c 40000000 /dev/urandom > /data && sync && sha256sum < /data && echo 3 > /proc/sys/vm/drop_caches && sha256sum < /data"


def fill(folder, leave_mb):
    """A file that leaves only so much."""
    space = os.statvfs(folder)
    with open(folder / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - (leave_mb << 20))


def test_admission_names_the_folder_when_there_is_no_space(sandbox, small_store):
    store, env = small_store
    assert sandbox.run("run", "python", "--", "true", env=env).returncode == 0
    fill(store, 0)
    done = sandbox.run("run", "python", "--", "true", env=env)
    assert done.returncode == 125
    assert b"[S400]" in done.stderr and str(store).encode() in done.stderr
    os.unlink(store / "filler")


def test_guest_waits_for_space_and_loses_nothing(sandbox, small_store):
    store, env = small_store
    with sandbox.start("run", "--disk", "60", "python", "--", "sh", "-c", "echo up; read x; " + WRITE, env=env) as child:
        assert child.stdout.readline() == b"up\n", child.stderr.read()
        fill(store, 10)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        deadline = time.monotonic() + 30
        while os.statvfs(store).f_bavail > 0:  # until the guest has used what was left
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)  # it is refused at least once, and tried again
        os.unlink(store / "filler")
        sums = child.stdout.read().split()
        assert child.wait(60) == 0
        assert len(sums) == 4 and sums[0] == sums[2] and len(sums[0]) == len(hashlib.sha256().hexdigest())


def test_shortage_that_does_not_end_is_told(sandbox, small_store):
    store, env = small_store
    with sandbox.start("run", "--disk", "60", "python", "--", "sh", "-c", "echo up; read x; " + WRITE, env=env) as child:
        assert child.stdout.readline() == b"up\n", child.stderr.read()
        fill(store, 10)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        assert child.wait(90) == 125
        assert b"[S300] the host's disk is full" in child.stderr.read()
        assert child.stdout.read() == b""
        assert not descendants(child.pid)
    os.unlink(store / "filler")

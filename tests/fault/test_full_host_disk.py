# SPDX-License-Identifier: Apache-2.0
"""The host's disk is full while a guest writes: nothing is lost silently. The writable disks live in the store's scratch
folder; here that is a small file system in a mount namespace of the program's own."""
import hashlib
import os
import shutil
import subprocess
import time

import pytest

from processes import descendants

SCRATCH_MB = 64


@pytest.fixture
def small_scratch(sandbox, tmp_path):
    """A command that runs the program with a scratch folder of SCRATCH_MB; what is at `filler` in it can be removed from outside."""
    store = tmp_path / "store"
    shutil.copytree(sandbox.store, store, copy_function=os.link, ignore=shutil.ignore_patterns("scratch", "locks"))
    (store / "scratch").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SCRATCH_MB}m", "none", store / "scratch"], check=False).returncode:
        pytest.skip("needs the right to mount")
    sandbox_env = {"III_SANDBOX_DATA_DIR": str(store)}
    yield store / "scratch", sandbox_env
    for _ in range(50):
        if subprocess.run(["umount", store / "scratch"], capture_output=True, check=False).returncode == 0:
            break
        time.sleep(0.1)


WRITE = "head -c 40000000 /dev/urandom > /data && sync && sha256sum < /data && echo 3 > /proc/sys/vm/drop_caches && sha256sum < /data"


def fill(folder, leave_mb):
    """A file that leaves only so much."""
    space = os.statvfs(folder)
    with open(folder / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - (leave_mb << 20))


def test_admission_names_the_folder_when_there_is_no_space(sandbox, small_scratch):
    scratch, env = small_scratch
    fill(scratch, 0)
    done = sandbox.run("run", "python", "--", "true", env=env)
    assert done.returncode == 125
    assert b"[S400]" in done.stderr and str(scratch).encode() in done.stderr
    os.unlink(scratch / "filler")


def test_guest_waits_for_space_and_loses_nothing(sandbox, small_scratch):
    scratch, env = small_scratch
    with sandbox.start("run", "--disk", "60", "python", "--", "sh", "-c", "echo up; read x; " + WRITE, env=env) as child:
        assert child.stdout.readline() == b"up\n"
        fill(scratch, 10)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        deadline = time.monotonic() + 30
        while os.statvfs(scratch).f_bavail > 0:  # until the guest has used what was left
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)  # it is refused at least once, and tried again
        os.unlink(scratch / "filler")
        sums = child.stdout.read().split()
        assert child.wait(60) == 0
        assert len(sums) == 4 and sums[0] == sums[2] and len(sums[0]) == len(hashlib.sha256().hexdigest())


def test_shortage_that_does_not_end_is_told(sandbox, small_scratch):
    scratch, env = small_scratch
    with sandbox.start("run", "--disk", "60", "python", "--", "sh", "-c", "echo up; read x; " + WRITE, env=env) as child:
        assert child.stdout.readline() == b"up\n"
        fill(scratch, 10)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        assert child.wait(90) == 125
        assert b"[S300] the host's disk is full" in child.stderr.read()
        assert child.stdout.read() == b""
        assert not descendants(child.pid)
    os.unlink(scratch / "filler")

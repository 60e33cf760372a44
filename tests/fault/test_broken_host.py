# SPDX-License-Identifier: Apache-2.0
"""What a host lacks or has damaged is named, with what to do."""
import os
import pathlib
import shutil

import pytest

from hosts import path_without


@pytest.fixture
def own_store(sandbox, tmp_path):
    """A store of its own that shares the prepared content: links to the same files, so that one can be damaged."""
    store = tmp_path / "store"
    shutil.copytree(sandbox.store, store, copy_function=os.link, ignore=shutil.ignore_patterns("scratch", "locks"))
    return store


def test_missing_qemu_is_named(sandbox, tmp_path):
    done = sandbox.run("run", "python", "--", "true", env={"PATH": path_without(tmp_path, "qemu-system")})
    assert done.returncode == 125
    assert b"qemu-system-x86" in done.stderr and b"install" in done.stderr


def test_missing_kernel_that_cannot_be_fetched_is_named(sandbox, own_store, tmp_path):
    shutil.rmtree(own_store / "kernels")
    done = sandbox.run("run", "python", "--", "true", env={"III_SANDBOX_DATA_DIR": str(own_store), "PATH": path_without(tmp_path, "apt")})
    assert done.returncode == 125
    assert b"kernel" in done.stderr and b"apt-cache is not in PATH" in done.stderr


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut"])
def test_damaged_image_that_cannot_be_made_again_is_named(sandbox, own_store, tmp_path, damage):
    for blob in (own_store / "blobs" / "sha256").iterdir():
        size = blob.stat().st_size
        blob.unlink()
        with open(blob, "wb") as new:
            if damage == "garbage":
                new.write(os.urandom(1 << 20))
                new.truncate(size)
            elif damage == "cut":
                new.truncate(size // 2)
        os.chmod(blob, 0o444)
    done = sandbox.run("run", "python", "--", "true", env={"III_SANDBOX_DATA_DIR": str(own_store), "PATH": path_without(tmp_path, "mmdebstrap")})
    assert done.returncode == 125
    assert b"mmdebstrap" in done.stderr, done.stderr


def test_store_that_cannot_be_written_is_named(sandbox, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = sandbox.run("run", "python", "--", "true", env={"III_SANDBOX_DATA_DIR": str(blocked / "store")})
    assert done.returncode == 125 and str(blocked).encode() in done.stderr


def test_too_much_memory_is_refused(sandbox):
    done = sandbox.run("run", "--memory", "1000000", "python", "--", "true")
    assert done.returncode == 125 and b"[S400]" in done.stderr and b"--memory 1000000" in done.stderr


def test_refused_emulation_says_why_kvm_is_not_usable(sandbox):
    done = sandbox.run("run", "--accel", "kvm", "python", "--", "true")
    if done.returncode == 0:
        pytest.skip("KVM works here")
    assert done.returncode == 125 and b"[S300] KVM is not usable here: " in done.stderr


def test_without_home_or_with_an_unset_one(sandbox):
    environment = {name: value for name, value in sandbox.env.items() if name not in ("HOME", "XDG_DATA_HOME")}
    done = sandbox.run("run", "python", "--", "true", replace_env=environment)
    assert done.returncode == 0

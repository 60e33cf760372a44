# SPDX-License-Identifier: Apache-2.0
"""`iii-sandbox doctor` on hosts that lack something: each in a mount namespace of its own, where that thing is taken away."""
import json
import os
import shutil
import subprocess

import pytest

from hosts import path_without


def findings(sandbox, before="true", words=(), env=None):
    """The findings by name, after the shell lines `before` in a private mount namespace."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{before}; exec "$@"', "sh", sandbox.program, "doctor", "--json", *words]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, env={**sandbox.env, **(env or {})}, check=False)
    if b"unshare failed" in done.stderr:
        pytest.skip("needs a mount namespace")
    assert done.returncode in (0, 1, 3), done.stderr
    result = json.loads(done.stdout)
    assert {"ok": 0, "degraded": 3, "missing": 1}[result["verdict"]] == done.returncode
    return {one["name"]: one for one in result["findings"]}


# A /dev of its own, with what a program needs and no kvm.
OWN_DEV = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && mkdir /dev/shm"


def test_healthy_host_lacks_nothing_that_is_needed(sandbox):
    found = findings(sandbox)
    for name in ("qemu", "programs", "tools", "store", "kernel", "images", "seccomp", "namespaces", "port"):
        assert found[name]["verdict"] == "ok", found[name]
    assert found["kvm"]["verdict"] in ("ok", "degraded")


def test_no_kvm_device(sandbox):
    found = findings(sandbox, OWN_DEV)
    assert found["kvm"]["verdict"] == "degraded"
    assert "No such file" in found["kvm"]["detail"] and "modprobe" in found["kvm"]["remedy"]


def test_fake_kvm_device(sandbox):
    found = findings(sandbox, OWN_DEV + " && touch /dev/kvm")
    assert found["kvm"]["verdict"] == "degraded" and found["kvm"]["detail"]


def test_no_rights_on_kvm(sandbox):
    before = OWN_DEV + f" && mknod -m 600 /dev/kvm c 10 232 && cp {sandbox.program} /dev/shm/ && chmod 755 /dev/shm"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{before} && exec "$@"', "sh", "setpriv", "--reuid=12345",
               "--regid=12345", "--clear-groups", "/dev/shm/iii-sandbox", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False, cwd="/",
                          env={**sandbox.env, "HOME": "/tmp", "III_SANDBOX_DATA_DIR": "/tmp/iii-nobody"})
    kvm = [one for one in json.loads(done.stdout)["findings"] if one["name"] == "kvm"][0]
    assert kvm["verdict"] == "degraded" and "Permission denied" in kvm["detail"] and "usermod -aG kvm" in kvm["remedy"], kvm


def test_no_qemu(sandbox, tmp_path):
    found = findings(sandbox, env={"PATH": path_without(tmp_path, "qemu-system")})
    assert found["qemu"]["verdict"] == "missing"
    assert found["qemu"]["remedy"].endswith("apt-get install qemu-system-x86")


def test_no_image_tools(sandbox, tmp_path):
    found = findings(sandbox, env={"PATH": path_without(tmp_path, "mmdebstrap", "mke2fs")})
    assert found["tools"]["verdict"] == "missing"
    assert "apt-get install" in found["tools"]["remedy"]
    assert "mmdebstrap" in found["tools"]["remedy"] and "e2fsprogs" in found["tools"]["remedy"]


def test_nothing_prepared(sandbox, tmp_path):
    found = findings(sandbox, env={"III_SANDBOX_DATA_DIR": str(tmp_path / "empty")})
    for name in ("kernel", "images"):
        assert found[name]["verdict"] == "degraded" and "prepared yet" in found[name]["detail"]
    assert found["images"]["remedy"] == "iii-sandbox image pull python"
    assert not (tmp_path / "empty").exists()


def test_full_disk(sandbox, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    found = findings(sandbox, f"mount -t tmpfs -o size=1m none {folder}", env={"III_SANDBOX_DATA_DIR": str(folder)})
    assert found["disk"]["verdict"] == "missing" and "MiB free" in found["disk"]["detail"]


def test_store_is_mended(sandbox, tmp_path):
    folder = tmp_path / "new" / "data"
    env = {"III_SANDBOX_DATA_DIR": str(folder)}
    assert findings(sandbox, env=env)["store"]["verdict"] == "degraded"
    assert not folder.exists()
    assert findings(sandbox, words=["--fix"], env=env)["store"]["verdict"] == "ok"
    assert folder.is_dir()
    shutil.rmtree(tmp_path / "new")


def test_text_form_names_the_remedy(sandbox, tmp_path):
    done = sandbox.run("doctor", env={"PATH": path_without(tmp_path, "qemu-system")})
    assert done.returncode == 1
    assert b"missing   qemu" in done.stdout and "→ apt-get install qemu-system-x86".encode() in done.stdout


def test_words_are_refused(sandbox):
    assert sandbox.run("doctor", "x").returncode == 2

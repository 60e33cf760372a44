# SPDX-License-Identifier: Apache-2.0
"""The same by an ordinary user, with no right on anything but their own store."""
import os
import shutil
import subprocess
import tempfile

import pytest

USER_ID = 12345


@pytest.fixture
def user(sandbox):
    """Runs the program as an ordinary user: copies of the programs, and a store of theirs with the same content."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    home = tempfile.mkdtemp(prefix="iii-user-", dir="/tmp")
    programs, store = os.path.join(home, "bin"), os.path.join(home, "store")
    os.mkdir(programs)
    for name in ("iii-sandbox", "iii-sandbox-agent", "iii-sandbox-image"):
        shutil.copy(os.path.join(sandbox.build, name), programs)
    shutil.copytree(sandbox.store, store, ignore=shutil.ignore_patterns("scratch", "locks"))
    for path, folders, files in os.walk(home):
        for name in [path] + [os.path.join(path, one) for one in folders + files]:
            os.chown(name, USER_ID, USER_ID, follow_symlinks=False)
    os.chmod(home, 0o755)

    def run(*words, timeout=90, home_folder=home):
        env = {**sandbox.env, "III_SANDBOX_DATA_DIR": store, "HOME": home_folder}
        command = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", os.path.join(programs, "iii-sandbox"), *words]
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout, env=env, cwd=home, check=False)

    run.home = home
    yield run
    shutil.rmtree(home)


def test_run_needs_no_root(user):
    done = user("run", "python", "--", "python3", "-c", "print(2+2)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"4\n", b"")


def test_files_of_an_ordinary_user(user):
    with open(os.path.join(user.home, "in"), "w", encoding="utf-8") as file:
        file.write("content")
    os.chown(os.path.join(user.home, "in"), USER_ID, USER_ID)
    done = user("run", "--file", "in:/in", "--out", "/out:result", "python", "--", "sh", "-c", "cp /in /out; chmod 640 /out")
    assert (done.returncode, done.stderr) == (0, b"")
    info = os.stat(os.path.join(user.home, "result"))
    assert (info.st_uid, info.st_mode & 0o7777) == (USER_ID, 0o640)


def test_doctor_tells_an_ordinary_user_what_is_missing(user):
    done = user("doctor")
    assert done.returncode in (1, 3)
    assert b"rights" in done.stdout and b"debian: images" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""The leak check of tests/conftest.py sees what a test leaves behind."""
import os
import shutil
import subprocess
import sys

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

LEAKS = {
    "nothing": ("", ""),
    "a child": ("subprocess.Popen(['sleep', '60'])", "(sleep)"),
    "an orphan in a session of its own": ("subprocess.run(['setsid', '-f', 'sleep', '61'])", "left behind: process"),
    "a file": ("os.makedirs(SCRATCH, exist_ok=True); open(SCRATCH + '/x', 'w').close()", "/scratch/x"),
    "a descriptor": ("os.open('/dev/null', os.O_RDONLY)", "(/dev/null)"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_leak_fails_the_test(tmp_path, leak):
    statement, message = LEAKS[leak]
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("conftest.py", "processes.py"):
        shutil.copy(os.path.join(TESTS, name), folder)
    (folder / "test_it.py").write_text("import os, pytest, subprocess\n@pytest.fixture(scope='session')\ndef prepared_sandbox(): pass\n"
                                       f"SCRATCH = {str(tmp_path / 'build/test-store/scratch')!r}\n"
                                       f"def test_it(sandbox):\n    {statement or 'pass'}\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == (1 if message else 0), done.stdout
    assert not message or "left behind: " in done.stdout and message in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""What tests of the real programs share: the `sandbox` fixture and the check that nothing is left after a test.

The program under test is $III_SANDBOX_BUILD/iii-sandbox (default build/asan). All tests use one store, build/test-store, kept
from run to run, so that kernel and image are prepared once. A test marked `smoke` also runs on the release build."""
import ctypes
import os
import signal
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from processes import descendants, is_alive, open_files, wait_gone  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
GONE_SECS = 5      # how long after a test its processes may take to be gone
PREPARE_SECS = 900  # the first preparation fetches packages


class Child(subprocess.Popen):
    """Leaving the `with` block kills it, whatever state the test left it in."""

    def __exit__(self, *details):
        if self.poll() is None:
            self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            try:
                if stream:
                    stream.close()
            except BrokenPipeError:
                pass
        self.wait()


class Sandbox:
    """The program under test, in an environment of its own."""

    def __init__(self, home):
        self.build = os.path.join(ROOT, os.environ.get("III_SANDBOX_BUILD", "build/asan"))
        self.program = os.path.join(self.build, "iii-sandbox")
        self.store = os.path.join(ROOT, "build", "test-store")
        self.scratch = os.path.join(self.store, "scratch")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("III_", "XDG_", "PYTEST_"))}
        self.env.update({
            "III_SANDBOX_DATA_DIR": self.store,
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        })

    def run(self, *words, stdin=None, timeout=60, env=None, replace_env=None):
        """Runs it to its end. stdin: bytes; None is /dev/null. env adds to the environment, replace_env stands for it. What
        the program says comes back as bytes; at the time limit it is killed and the test fails, showing what it had said."""
        feed = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        try:
            return subprocess.run([self.program, *words], capture_output=True, timeout=timeout, check=False,
                                  env=replace_env or {**self.env, **(env or {})}, **feed)
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"{' '.join(words)[:200]}: no end after {timeout} s; stdout {late.stdout!r}; stderr {late.stderr!r}")

    def start(self, *words, env=None, stderr=subprocess.PIPE):
        """Starts it, with pipes; use it in a `with` statement."""
        return Child([self.program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                     env={**self.env, **(env or {})})


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: also run on the release build")
    # What a test leaves behind becomes our child, wherever in the tree it was: so the leak check sees it.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(scope="session")
def prepared_sandbox(tmp_path_factory):
    sandbox = Sandbox(tmp_path_factory.mktemp("home"))
    if not os.path.exists(sandbox.program):
        pytest.fail(f"{sandbox.program} is not built", pytrace=False)
    done = sandbox.run("run", "python", "--", "true", timeout=PREPARE_SECS)
    if done.returncode != 0:
        pytest.fail(f"a first run, which prepares the store, failed ({done.returncode}): {done.stderr.decode(errors='replace')}",
                    pytrace=False)
    return sandbox


@pytest.fixture
def sandbox(prepared_sandbox):
    return prepared_sandbox


def reap_adopted(before):
    """Zombies that came to us from below; the others belong to subprocess."""
    for process in descendants(os.getpid()) - before:
        if not is_alive(process):
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass


def files_below(folder):
    return {os.path.join(path, name) for path, _, names in os.walk(folder) for name in names}


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """After each test: no process it started, no descriptor of ours, no file in the store's scratch folder."""
    scratch = os.path.join(ROOT, "build", "test-store", "scratch")
    uses_store = "sandbox" in request.fixturenames
    if uses_store:
        request.getfixturevalue("prepared_sandbox")
    processes, files, descriptors = descendants(os.getpid()), files_below(scratch), open_files(os.getpid())
    yield
    started = descendants(os.getpid()) - processes
    wait_gone(started, GONE_SECS)
    left = []
    for process in started:
        if is_alive(process):
            left.append(f"process {process.pid} ({process.name})")
            os.kill(process.pid, signal.SIGKILL)
    wait_gone(started, GONE_SECS)
    reap_adopted(processes)
    left += [f"file {path}" for path in sorted(files_below(scratch) - files) if uses_store]
    left += [f"descriptor {number} ({what})" for number, what in sorted(open_files(os.getpid()).items())
             if descriptors.get(number) != what and not what.startswith("/proc/")]
    if left:
        pytest.fail("left behind: " + ", ".join(left), pytrace=False)

# SPDX-License-Identifier: Apache-2.0
"""Programs of the SDK tests: the engine library as a program (test_bus), and node scripts with the real npm client."""
import json
import os
import queue
import shutil
import subprocess
import threading
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("III_SANDBOX_BUILD", "build/asan"))
NODE_DIR = os.path.join(ROOT, "build", "sdk")
SDK = os.path.join(ROOT, "tests", "sdk")
TEST_BUS = os.path.join(BUILD, "tests", "sdk", "test_bus")


FUNCTIONS = ["demo::channel", "demo::consume", "demo::describe", "demo::echo", "demo::fail", "demo::produce", "demo::relay",
             "demo::slow", "demo::stats"]


def install_client():
    """The npm client as the lock file says, once; again when the lock file is newer."""
    os.makedirs(NODE_DIR, exist_ok=True)
    stamp = os.path.join(NODE_DIR, "installed")
    with open(os.path.join(SDK, "package-lock.json"), encoding="utf-8") as file:
        wanted = file.read()
    shutil.copy(os.path.join(SDK, "lib.mjs"), NODE_DIR)
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == wanted:
                return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(os.path.join(SDK, name), NODE_DIR)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=NODE_DIR, check=True, timeout=240,
                   stdin=subprocess.DEVNULL, capture_output=True)
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)


class Program:
    """A program whose standard output is lines; ended at the end of the `with` block."""

    def __init__(self, *words, env=None, cwd=None):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                                        env={**os.environ, "ASAN_OPTIONS": "detect_stack_use_after_return=1", **(env or {})})
        self.lines = queue.Queue()
        self.seen = []
        self.errors = b""
        self.threads = [threading.Thread(target=self._read_lines), threading.Thread(target=self._read_errors)]
        for thread in self.threads:
            thread.start()

    def _read_lines(self):
        for line in self.process.stdout:
            self.lines.put(line.decode(errors="replace").rstrip("\n"))
        self.lines.put(None)

    def _read_errors(self):
        self.errors = self.process.stderr.read()

    def line(self, prefix="", timeout=20):
        """The next line that begins with prefix; earlier ones are kept in `seen`."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line '{prefix}' within {timeout} s; seen {self.seen[-20:]}") from None
            if line is None:
                self.process.wait(timeout=10)
                self.threads[1].join()
                raise AssertionError(f"it ended ({self.process.returncode}) before a line '{prefix}'; seen {self.seen[-20:]}; "
                                     f"{self.errors.decode(errors='replace')[-3000:]}")
            self.seen.append(line)
            if line.startswith(prefix):
                return line

    def json(self, timeout=20):
        return json.loads(self.line("", timeout))

    def stop(self, timeout=10):
        """Asks it to end; returns its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait(timeout)

    def wait(self, timeout=10):
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no end within {timeout} s; seen {self.seen[-20:]}") from None
        finally:
            for thread in self.threads:
                thread.join()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, *details):
        if self.process.stdin.closed:
            return
        if kind:
            self.process.kill()
            self.wait()
            return
        status = self.stop()
        assert status in (0, -15), f"exit status {status}: {self.errors.decode(errors='replace')[-3000:]}"


class Bus(Program):
    """An embedded engine with the functions demo::*."""

    def __init__(self, port=0, env=None):
        super().__init__(TEST_BUS, "serve", str(port), env=env)
        self.port = int(self.line("listening").split()[1])
        self.url = f"ws://127.0.0.1:{self.port}"


class Worker(Program):
    """A worker with the functions demo::* that joins an engine."""

    def __init__(self, url, env=None):
        super().__init__(TEST_BUS, "worker", url, env=env)


class Node(Program):
    """A script, given lib.mjs and the engine's URL."""

    def __init__(self, script, url, *words, env=None, node=("node",)):
        text = ("import { registerWorker, TriggerAction, InvocationError, createChannel, ChannelReader, ChannelWriter, WebSocket, "
                "randomUUID, spawn, net, url, args, out, sleep, show, connect, attempt, raw, refused } from './lib.mjs'\n"
                + script + "\nprocess.exit(0)\n")
        super().__init__(*node, "--input-type=module", "-e", text, *words, cwd=NODE_DIR, env={"BUS_URL": url, **(env or {})})

    def results(self, timeout=30):
        """Everything it says until its end."""
        found = []
        while True:
            line = self.lines.get(timeout=timeout)
            if line is None:
                break
            self.seen.append(line)
            found.append(json.loads(line))
        status = self.wait()
        assert status == 0, self.errors.decode(errors="replace")[-3000:]
        return found


def node(script, url, *words, timeout=30, env=None):
    """Runs a script to its end; the list of what it said, or the one thing."""
    with Node(script, url, *words, env=env) as program:
        found = program.results(timeout)
    return found[0] if len(found) == 1 else found


class FakeEngine(Program):
    """An engine that records and misbehaves, see tests/fake/engine.mjs."""

    def __init__(self, env=None):
        super().__init__("node", os.path.join(ROOT, "tests", "fake", "engine.mjs"), cwd=NODE_DIR, env=env)
        self.port = self.event("listening")["listening"]
        self.url = f"ws://127.0.0.1:{self.port}"

    def event(self, name, timeout=20):
        deadline = time.monotonic() + timeout
        while True:
            event = json.loads(self.line("{", max(0.1, deadline - time.monotonic())))
            if name in event:
                return event

    def order(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def message(self, wanted, timeout=20):
        """The next message of the worker for which wanted is true."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.event("message", max(0.1, deadline - time.monotonic()))["message"]
            if wanted(message):
                return message

    def call(self, function_id, data, **more):
        invocation_id = str(uuid.uuid4())
        self.order(send={"type": "invokefunction", "invocation_id": invocation_id, "function_id": function_id, "data": data, **more})
        return self.message(lambda m: m["type"] == "invocationresult" and m["invocation_id"] == invocation_id)

    def start_up(self):
        """The messages of a worker's start, up to its last function."""
        messages = []
        while sorted(m["id"] for m in messages if m["type"] == "registerfunction") != FUNCTIONS:
            messages.append(self.event("message")["message"])
        return messages

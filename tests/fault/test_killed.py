# SPDX-License-Identifier: Apache-2.0
"""kill -9 of iii-sandbox at any moment leaves no process, no file and no lock."""
import os
import signal
import time

import pytest

from processes import descendants, is_alive, wait_gone

MOMENTS = 20
WINDOW_S = 4.0  # from before the machine starts until well into the command


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_kill_leaves_nothing(sandbox, moment):
    with sandbox.start("run", "python", "--", "sh", "-c", "echo up; sleep 60") as child:
        deadline = time.monotonic() + WINDOW_S * moment / MOMENTS
        family = set()
        while time.monotonic() < deadline:
            family |= descendants(child.pid)
            time.sleep(0.02)
        family |= descendants(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    wait_gone(family, 10)
    assert not [one for one in family if is_alive(one)]
    assert os.listdir(sandbox.scratch) == []


def test_run_after_the_kills_works(sandbox):
    done = sandbox.run("run", "python", "--", "echo", "fine")
    assert (done.returncode, done.stdout) == (0, b"fine\n")


def test_killed_machine_is_told_at_once(sandbox):
    with sandbox.start("run", "python", "--", "sh", "-c", "echo up; sleep 60") as child:
        assert child.stdout.readline() == b"up\n"
        machine = [one for one in descendants(child.pid) if "qemu" in one.name]
        assert machine
        began = time.monotonic()
        os.kill(machine[0].pid, signal.SIGKILL)
        assert child.wait(10) == 125
        assert time.monotonic() - began < 5
        error = child.stderr.read()
        assert b"[S300]" in error and b"signal 9" in error


def test_frozen_machine_meets_the_deadline(sandbox):
    with sandbox.start("run", "--timeout", "2s", "python", "--", "sh", "-c", "echo up; sleep 60") as child:
        assert child.stdout.readline() == b"up\n"
        for machine in [one for one in descendants(child.pid) if "qemu" in one.name]:
            os.kill(machine.pid, signal.SIGSTOP)
        assert child.wait(20) == 124
        assert b"[S200]" in child.stderr.read()

# SPDX-License-Identifier: Apache-2.0
"""tools/check counts right, and nothing that it starts outlives it."""
import importlib.machinery
import importlib.util
import os
import sys
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def check(tmp_path):
    loader = importlib.machinery.SourceFileLoader("check", os.path.join(ROOT, "tools", "check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check", loader))
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = kept
    module.OUTPUT = str(tmp_path)
    return module


def counted(check, status, text):
    result = check.Result()
    check.count_tap("t", status, text, result)
    return result.passed, [failure.split("\n")[0] for failure in result.failures], result.skips


def test_tap_is_counted(check):
    text = "1..3\nok 1 - test_a\nok 2 - test_b # SKIP no kvm\nnot ok 3 - test_c\n# what it said\n"
    assert counted(check, 1, text) == (1, ["t: test_c"], ["t: test_b: no kvm"])


def test_crash_after_good_tests_is_a_failure(check):
    assert counted(check, -11, "ok 1 - test_a\n") == (1, ["t: exit status -11, in or after test 2"], [])


def test_program_without_tap_counts_by_its_status(check):
    assert counted(check, 0, "anything") == (1, [], [])
    assert counted(check, 1, "anything") == (0, ["t: exit status 1, in or after test 1"], [])


def test_equal_failures_are_shown_once(check):
    assert list(check.grouped(["a\nsame", "b\nsame", "c"])) == ["a\nb\nsame", "c"]


def test_step_that_hangs_is_ended_with_its_children(check):
    step = check.Step("s", "one", ["sh", "-c", "trap '' TERM; sleep 1000 & echo started; wait"], 1)
    began = time.monotonic()
    check.run_command(step)
    assert time.monotonic() - began < 15
    assert step.result.passed == 0 and "started" in step.result.failures[0] and "after its limit of 1 s" in step.result.failures[0]


def test_step_whose_need_failed_is_a_failure(check, capsys):
    build, test = check.Step("b", "one", ["false"], 5), check.Step("t", "one", ["true"], 5, ("b",))
    check.run_all([build, test])
    assert test.result.failures == ["t: not run, because b failed"] and test.result.passed == 0
    assert capsys.readouterr().out.startswith("FAIL  b")


def test_static_check_that_cannot_run_is_skipped_with_its_reason(check):
    step = check.Step("s", "static", ["sh", "-c", "echo no compiler here; exit 77"], 5)
    check.run_command(step)
    assert (step.result.passed, step.result.failures, step.result.skips) == (0, [], ["s: no compiler here"])

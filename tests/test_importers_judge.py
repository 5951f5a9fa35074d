"""Which of log and witness counts, and what in a log alone does not fit together. Logs and statuses written by hand."""

from __future__ import annotations

import pytest

from glmgym_envs.grading.witnessed import Heard
from glmgym_envs.harbor.logged import judge
from glmgym_envs.importers.swe import is_witnessed
from glmgym_envs.importers.verdicts import END, EXIT_CODE, START, Unparsable, grade_swe_bench, suspicions

RULE = {"rule": "swe-bench", "parser": "pytest", "fail_to_pass": ["t.py::f"], "pass_to_pass": ["t.py::p"]}
GOOD = {"t.py::f": "PASSED", "t.py::p": "PASSED"}
BAD = {"t.py::f": "FAILED", "t.py::p": "PASSED"}


def _log(statuses: dict[str, str]) -> str:
    lines = "".join(f"{status} {id}\n" for id, status in statuses.items())
    return f"{START}\n=== short test summary info ===\n{lines}=== 2 passed in 0.01s ===\n{END}\n{EXIT_CODE}0\n"


@pytest.mark.parametrize(
    ("log", "heard", "reward", "flag"),
    [
        (GOOD, GOOD, 1.0, ""),
        (BAD, BAD, 0.0, ""),
        (BAD, GOOD, 0.0, ""),  # a log may hold less than pytest said, as where a line was cut
        (GOOD, BAD, 0.0, "the log says that the task is solved, and pytest does not"),
        (GOOD, {"t.py::f": "PASSED"}, 0.0, "the log says that the task is solved, and pytest does not"),
        (GOOD, {}, 0.0, "the log says that the task is solved, and pytest does not"),
    ],
)
def test_the_worse_of_log_and_witness_counts(
    log: dict[str, str], heard: dict[str, str], reward: float, flag: str
) -> None:
    value, _, flags = judge(Heard(_log(log), 1, heard), RULE, witness=True)
    assert (value, flags) == (reward, (flag,) if flag else ())


def test_a_flagged_witness_is_worth_0_whatever_both_say() -> None:
    assert judge(Heard(_log(GOOD), 1, GOOD, ("stopped",)), RULE, witness=True)[::2] == (0.0, ("stopped",))


def test_a_run_without_a_witness_counts_only_where_none_is_wanted() -> None:
    heard = Heard(_log(GOOD), 0, {})
    assert judge(heard, RULE, witness=False)[::2] == (1.0, ())
    assert judge(heard, RULE, witness=True)[::2] == (0.0, ("no pytest of the test command reported to the grader",))


@pytest.mark.parametrize("timed_out", [False, True])
def test_no_run_at_all_is_a_failure_and_one_that_was_cut_off_is_not(timed_out: bool) -> None:
    """os._exit(0) at import leaves an empty log; without a session nothing shows that the policy's code ran."""
    with pytest.raises(Unparsable):
        judge(Heard(f"{START}\n{END}\n", 0, {}, timed_out=timed_out), RULE, witness=True)
    value, _, flags = judge(Heard(f"{START}\n{END}\n", 1, {}, timed_out=timed_out), RULE, witness=True)
    assert value == 0.0
    assert flags


def test_ids_are_read_alike_on_both_sides() -> None:
    """R2E-Gym's lose their file; an id of SWE-bench that was cut off at a space means all that begin with it."""
    log = "=== short test summary info ===\nPASSED r2e_tests/test_1.py::TestA::test_b\n=== 1 passed in 0.01s ===\n"
    heard = Heard(log, 1, {"r2e_tests/test_1.py::TestA::test_b": "PASSED"})
    assert judge(heard, {"rule": "expected", "expected": {"TestA.test_b": "PASSED"}}, witness=True)[::2] == (1.0, ())
    cut = {"rule": "swe-bench", "parser": "pytest", "fail_to_pass": ["t.py::f[a"], "pass_to_pass": []}
    whole = {"t.py::f[a b]": "PASSED", "t.py::f[a c]": "PASSED"}
    assert judge(Heard(_log(whole), 1, whole), cut, witness=True)[::2] == (1.0, ())
    half = {**whole, "t.py::f[a c]": "FAILED"}
    assert judge(Heard(_log(whole), 1, half), cut, witness=True)[0] == 0.0


UNITTEST = "test_a (m.T) ... ok\ntest_b (m.T) ... {b}\n\n-----\nRan {n} tests in 0.001s\n\n{end}\n"


@pytest.mark.parametrize(
    ("output", "code", "says"),
    [
        (UNITTEST.format(b="ok", n=2, end="OK"), 0, None),
        (UNITTEST.format(b="FAIL", n=2, end="FAILED (failures=1)"), 1, None),
        (UNITTEST.format(b="skipped 'x'", n=2, end="OK (skipped=1)"), 0, None),
        (UNITTEST.format(b="ok", n=2, end="OK"), None, None),
        (UNITTEST.format(b="ok", n=1, end="OK"), 0, "2 tests passed where the runner counted 1"),
        (UNITTEST.format(b="ok", n=2, end="OK") + "test_c (m.T) ... ok\n", 0, "after the runner's own summary"),
        ("test_a (m.T) ... ok\n", 0, "no summary"),
        ("test_a (m.T) ... ok\n" + UNITTEST.format(b="ok", n=3, end="OK"), 0, "test_a (m.T) passed twice"),
        ("test_b (m.T) ... ok\n" + UNITTEST.format(b="FAIL", n=2, end="OK"), 1, "test_b (m.T) both passed and failed"),
        (UNITTEST.format(b="FAIL", n=2, end="FAILED (failures=1)"), 0, "left with 0 though a test failed"),
        (UNITTEST.format(b="ok", n=2, end="OK"), 3, "left with 3 though no test failed"),
    ],
)
@pytest.mark.parametrize("parser", ["unittest", "django"])
def test_a_unittest_log_must_fit_together(output: str, code: int | None, says: str | None, parser: str) -> None:
    found = suspicions(output, parser, code)
    assert (found == []) if says is None else any(says in flag for flag in found), found


PYTEST = "=== short test summary info ===\nPASSED t.py::a\nPASSED t.py::b\n=== 2 passed, 1 warning in 0.01s ===\n"


@pytest.mark.parametrize(
    ("output", "code", "says"),
    [
        (PYTEST, 0, None),
        ("py39: t.py::a PASSED [ 50%]\nt.py::b PASSED [100%]\n" + PYTEST, 0, None),
        (PYTEST.replace("2 passed", "1 passed"), 0, "2 tests passed where the runner counted 1"),
        (PYTEST.replace("=== 2 passed, 1 warning in 0.01s ===\n", ""), 0, "no summary"),
        (PYTEST + "PASSED t.py::c\n", 0, "after the runner's own summary"),
        (PYTEST.replace("=== 2", "FAILED t.py::a\n=== 2"), 1, "t.py::a both passed and failed"),
        (PYTEST.replace("=== 2 passed", "ERROR t.py::a\n=== 2 passed, 1 error"), 1, None),  # in its teardown
        (PYTEST.replace("=== 2 passed", "FAILED t.py::c\n=== 1 failed, 2 passed"), 0, "left with 0"),
    ],
)
def test_a_log_of_tox_must_fit_together(output: str, code: int, says: str | None) -> None:
    found = suspicions(output, "tox", code)
    assert (found == []) if says is None else any(says in flag for flag in found), found


def test_a_strict_rule_takes_no_log_with_a_second_beginning_or_end() -> None:
    log = _log(GOOD)
    arguments = ("pytest", ["t.py::f"], ["t.py::p"])
    assert grade_swe_bench(log, *arguments, strict=True)["reward"] == 1.0
    for mark in (START, END):
        forged = log.replace(f"{mark}\n", f"{mark}\n{mark}\n")
        assert grade_swe_bench(forged, *arguments)["reward"] == 1.0  # the format's own rule
        found = grade_swe_bench(forged, *arguments, strict=True)
        assert (found["reward"], found["flags"]) == (0.0, [f"the log has the line {mark!r} more than once"])


@pytest.mark.parametrize(
    ("parser", "command", "wanted"),
    [
        ("pytest", "pytest -rA tests", True),
        ("pytest-v2", "cd /testbed && .venv/bin/python -m pytest -rA", True),
        ("pytest-options", "py.test -rA", True),
        ("pytest", "pytest -rA -n auto", False),
        ("pytest", "pytest -rA -n4", False),
        ("pytest", "pytest -rA --numprocesses=2", False),
        ("pytest", "make check", False),
        ("tox", "tox -epy39 -- pytest", False),
        ("unittest", "python -m unittest", False),
    ],
)
def test_a_witness_is_wanted_where_it_is_heard(parser: str, command: str, wanted: bool) -> None:
    assert is_witnessed(parser, command) == wanted

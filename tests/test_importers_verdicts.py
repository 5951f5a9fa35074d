"""Log parsers and grading rules of imported tasks, on hand-written logs; both sides of every rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym_envs.importers import verdicts
from glmgym_envs.importers.verdicts import (
    Unparsable,
    grade_all_passed,
    grade_expected,
    grade_swe_bench,
    ran,
    status_map,
    verdict,
)

SUMMARY = "=========== short test summary info ============\n"


def marked(output: str, code: int = 0) -> str:
    return f">>>>> Start Test Output\n{output}\n>>>>> End Test Output\n>>>>> Test Exit Code: {code}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("PASSED t.py::a", {"t.py::a": "PASSED"}),
        ("PASSED t.py::a[58-1 Byte]", {"t.py::a[58-1 Byte]": "PASSED"}),
        ("FAILED t.py::a - assert 1 == 2", {"t.py::a": "FAILED"}),
        ("FAILED t.py::a[x - y] - assert 1 == 2", {"t.py::a[x - y]": "FAILED"}),
        ("FAILED t.py::a[x - y]", {"t.py::a[x - y]": "FAILED"}),
        ("XFAIL t.py::a - not yet", {"t.py::a": "XFAIL"}),
        ("ERROR t.py", {"t.py": "ERROR"}),
        ("\x1b[32mPASSED\x1b[0m t.py::\x1b[1ma\x1b[0m\r", {"t.py::a": "PASSED"}),
        (" PASSED t.py::a", {}),
        ("PASSEDX t.py::a", {}),
        ("PASSED", {}),
        ("ERROR: not found: t.py", {}),
        ("t.py::a PASSED [ 50%]", {}),
        ("1 PASSED", {}),
    ],
)
def test_pytest_lines(line: str, expected: dict[str, str]) -> None:
    assert status_map(line, "pytest") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t.py::a PASSED", {"t.py::a": "PASSED"}),
        ("t.py::a[x y] FAILED      [ 50%]", {"t.py::a[x y]": "FAILED"}),
        ("PASSED t.py::a", {"t.py::a": "PASSED"}),
        ("FAILED t.py::a - AssertionError: x PASSED", {"t.py::a": "FAILED"}),
        ("\x01PASSED t.py::a", {"t.py::a": "PASSED"}),
        ("it has PASSED", {}),
        ("t.py::a PASSED early", {}),
    ],
)
def test_pytest_v2_reads_verbose_lines_too(line: str, expected: dict[str, str]) -> None:
    assert status_map(line, "pytest-v2") == expected


@pytest.mark.parametrize(
    ("id", "short"),
    [
        ("t.py::a[/usr/lib/x.py]", "t.py::a[/x.py]"),
        ("t.py::a[//host/x]", "t.py::a[//host/x]"),
        ("t.py::a[/usr/*]", "t.py::a[/usr/*]"),
        ("t.py::a[usr/lib]", "t.py::a[usr/lib]"),
        ("t.py::a", "t.py::a"),
    ],
)
def test_pytest_options_shortens_paths(id: str, short: str) -> None:
    assert status_map(f"PASSED {id}", "pytest-options") == {short: "PASSED"}


def test_tox_lines_may_carry_the_name_of_their_environment() -> None:
    log = "py39: PASSED t.py::a\npy39: t.py::b FAILED\nPASSED t.py::c\npy39: commands[0]> pytest\n"
    assert status_map(log, "tox") == {"t.py::a": "PASSED", "t.py::b": "FAILED", "t.py::c": "PASSED"}


UNITTEST = """\
test_a (app.tests.Case) ... ok
test_b (app.tests.Case)
What b is for. ... FAIL
test_c (app.tests.Case) ... skipped 'no database'
test_d (app.tests.Case) ... expected failure
test_e (app.tests.Case) ... unexpected success
test_f (app.tests.Case) ... ERROR
test_g (app.tests.Case) ... Testing against Django installed in '/testbed' with 4 processes
System check identified no issues (0 silenced).
ok
test_h (app.tests.Case) ... test_i (app.tests.Case) ... ok

======================================================================
FAIL: test_h (app.tests.Case) [n=1]
----------------------------------------------------------------------
AssertionError: 1 != 2
ok
Ran 9 tests in 0.002s

FAILED (failures=1)
"""


def test_unittest_results_on_their_own_line_a_later_one_or_a_heading() -> None:
    case = " (app.tests.Case)"
    assert status_map(UNITTEST, "unittest") == {
        f"test_a{case}": "PASSED",
        "What b is for.": "FAILED",
        f"test_c{case}": "SKIPPED",
        f"test_d{case}": "XFAIL",
        f"test_e{case}": "FAILED",
        f"test_f{case}": "ERROR",
        f"test_g{case}": "PASSED",
        f"test_h{case}": "FAILED",
        f"test_i{case}": "PASSED",
    }


def test_a_test_that_prints_dots_keeps_waiting_for_its_own_result() -> None:
    log = "test_a (m.C) ... reading\nLoading ... done\nok\nok\n"
    assert status_map(log, "unittest") == {"test_a (m.C)": "PASSED"}


def test_django_puts_a_migration_before_a_test() -> None:
    line = "  Applying sites.0002_alter_domain_unique...test_no_migrations (backends.tests.DbTests) ... ok\n"
    assert status_map(line, "django") == {"test_no_migrations (backends.tests.DbTests)": "PASSED"}
    assert status_map(line, "unittest") != status_map(line, "django")


def test_an_unknown_parser_is_named() -> None:
    with pytest.raises(Unparsable, match="unknown log parser 'jest'; known: django, pytest"):
        status_map("", "jest")


_NAMES = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), min_size=1).map(
    lambda text: f"t.py::test[{text.replace('[', '(').replace(']', ')').replace(' - ', '-')}]"
)


@given(st.dictionaries(_NAMES, st.sampled_from(["PASSED", "FAILED", "ERROR", "XFAIL"])), st.booleans())
def test_a_summary_comes_back_as_it_was_written(statuses: dict[str, str], with_messages: bool) -> None:
    tail = " - assert 1 == 2 - no" if with_messages else ""
    log = SUMMARY + "".join(f"{status} {id}{tail}\n" for id, status in statuses.items())
    assert status_map(log, "pytest") == statuses


@pytest.mark.parametrize(
    ("f2p", "p2p", "resolution"),
    [
        ("PASSED", "PASSED", "FULL"),
        ("XFAIL", "PASSED", "FULL"),
        ("SKIPPED", "PASSED", "NO"),
        ("XPASS", "PASSED", "NO"),
        ("ERROR", "PASSED", "NO"),
        (None, "PASSED", "NO"),
        ("PASSED", "XFAIL", "FULL"),
        ("PASSED", "SKIPPED", "FULL"),
        ("PASSED", "FAILED", "NO"),
        ("PASSED", "ERROR", "NO"),
        ("PASSED", None, "NO"),
    ],
)
def test_which_statuses_are_ok_in_which_list(f2p: str | None, p2p: str | None, resolution: str) -> None:
    statuses = {id: status for id, status in (("f", f2p), ("p", p2p)) if status}
    assert verdict(statuses, ["f"], ["p"])["resolution"] == resolution


def test_partial_is_some_of_the_first_and_all_of_the_second() -> None:
    statuses = {"f": "PASSED", "g": "FAILED", "p": "PASSED"}
    found = verdict(statuses, ["f", "g"], ["p"])
    assert (found["resolution"], found["fail_to_pass"], found["pass_to_pass"]) == ("PARTIAL", 0.5, 1.0)
    assert found["failed"] == {"fail_to_pass": ["g"], "pass_to_pass": []}
    assert verdict({**statuses, "f": "FAILED"}, ["f", "g"], ["p"])["resolution"] == "NO"
    assert verdict({**statuses, "p": "FAILED"}, ["f", "g"], ["p"])["resolution"] == "NO"


def test_a_list_of_no_tests_asks_for_nothing() -> None:
    assert verdict({"f": "PASSED"}, ["f"], [])["resolution"] == "FULL"
    assert verdict({"f": "FAILED"}, ["f"], [])["resolution"] == "NO"


def test_fail_only_takes_all_but_an_explicit_failure() -> None:
    assert verdict({}, ["f"], ["p"], "fail_only")["resolution"] == "FULL"
    assert verdict({"f": "ERROR"}, ["f"], ["p"], "fail_only")["resolution"] == "FULL"
    assert verdict({"f": "FAILED"}, ["f"], ["p"], "fail_only")["resolution"] == "NO"
    assert verdict({"p": "FAILED"}, ["f"], ["p"], "fail_only")["resolution"] == "NO"


@pytest.mark.parametrize(
    ("statuses", "resolution"),
    [
        ({"t[58-1 Byte]": "PASSED"}, "FULL"),
        ({"t[58-1 Byte]": "PASSED", "t[58-1 kB]": "PASSED"}, "FULL"),
        ({"t[58-1 Byte]": "PASSED", "t[58-1 kB]": "FAILED"}, "NO"),
        ({"t[58-1 Byte]": "FAILED"}, "NO"),
        ({"t[58-10 Bytes]": "PASSED"}, "NO"),  # another test: no space cuts this one off there
        ({"t[58-1": "PASSED", "t[58-1 kB]": "FAILED"}, "FULL"),  # a log of the harness's own kind
    ],
)
def test_an_id_cut_off_at_a_space_means_the_tests_it_begins(statuses: dict[str, str], resolution: str) -> None:
    assert verdict(statuses, ["t[58-1"], [])["resolution"] == resolution


def test_an_id_that_is_whole_is_not_a_beginning() -> None:
    assert verdict({"t[1] b": "PASSED", "t c": "PASSED"}, ["t[1]"], [])["resolution"] == "NO"
    assert verdict({"t c": "PASSED"}, ["t"], [])["resolution"] == "NO"


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["PASSED", "FAILED", "SKIPPED", "XFAIL", "ERROR"])))
def test_tests_in_no_list_change_nothing(statuses: dict[str, str]) -> None:
    f2p, p2p = ["a", "b"], ["c", "d"]
    listed = {id: status for id, status in statuses.items() if id in (*f2p, *p2p)}
    assert verdict(statuses, f2p, p2p) == verdict(listed, f2p, p2p)
    ok = all(statuses.get(id) in ("PASSED", "XFAIL") for id in f2p)
    ok &= all(statuses.get(id) in ("PASSED", "XFAIL", "SKIPPED") for id in p2p)
    assert (verdict(statuses, f2p, p2p)["resolution"] == "FULL") == ok


@pytest.mark.parametrize(
    "marker",
    [">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out"],
)
def test_a_bad_marker_is_no_success(marker: str) -> None:
    log = marked("PASSED f")
    assert grade_swe_bench(log, "pytest", ["f"], [])["reward"] == 1.0
    assert grade_swe_bench(f"{marker}\n{log}", "pytest", ["f"], [])["reward"] == 0.0


@pytest.mark.parametrize(
    "log",
    [
        "",
        "PASSED f\n",
        ">>>>> Start Test Output\nPASSED f\n",
        "PASSED f\n>>>>> End Test Output\n",
        ">>>>> End Test Output\n>>>>> Start Test Output\nPASSED f\n",
        marked("PASSED f", 127),
        marked("PASSED f", 126),
        marked("bash: pytest: command not found", 1),
        marked("/usr/bin/python3: No module named pytest", 1),
        marked(""),
    ],
)
def test_a_log_without_a_run_is_no_zero(log: str) -> None:
    with pytest.raises(Unparsable):
        grade_swe_bench(log, "pytest", ["f"], [])


@pytest.mark.parametrize(
    "output",
    [
        "============ no tests ran in 0.01s ============",
        "no tests ran in 0.01s",
        "========= test session starts =========",
        "ImportError while loading conftest '/testbed/conftest.py'.",
        "Ran 0 tests in 0.000s",
        'Traceback (most recent call last):\n  File "/testbed/manage.py", line 1\nSyntaxError: invalid syntax',
    ],
)
def test_a_run_without_tests_is_a_zero(output: str) -> None:
    assert ran(output)
    assert grade_swe_bench(marked(output, 1), "pytest", ["f"], [])["reward"] == 0.0


def test_all_passed_takes_no_other_status_and_no_empty_run() -> None:
    log = f"{SUMMARY}PASSED t.py::a\n"
    assert grade_all_passed(log, "pytest")["reward"] == 1.0
    for status in ("FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"):
        assert grade_all_passed(f"{log}{status} t.py::b\n", "pytest")["reward"] == 0.0
    assert grade_all_passed("=== no tests ran in 0.1s ===", "pytest")["reward"] == 0.0
    with pytest.raises(Unparsable, match="nothing shows that a test runner was at work"):
        grade_all_passed("uv: command not found", "pytest")


R2E = f"""\
PASSED r2e_tests/early.py::not_in_the_summary
{SUMMARY}PASSED r2e_tests/test_1.py::test_a
PASSED r2e_tests/test_1.py::TestX::test_b
SKIPPED [1] r2e_tests/test_1.py:3: no
\x1b[31mFAILED\x1b[0m r2e_tests/test_1.py::test_c - assert 1 == 2\r
"""


def test_r2e_wants_every_status_as_expected_and_no_test_more_or_less() -> None:
    expected = {"test_a": "PASSED", "TestX.test_b": "PASSED", "\x1b[1mtest_c - assert 1 == 2\x1b[0m": "FAILED"}
    assert grade_expected(R2E, expected)["reward"] == 1.0
    assert grade_expected(R2E.replace("FAILED\x1b[0m r2e", "PASSED\x1b[0m r2e"), expected)["reward"] == 0.0
    assert grade_expected(R2E + "PASSED r2e_tests/test_1.py::test_d\n", expected)["reward"] == 0.0
    assert grade_expected(R2E, {**expected, "test_d": "PASSED"})["differ"] == ["test_d"]
    assert grade_expected(f"{SUMMARY}= 1 passed in 0.1s =", expected)["reward"] == 0.0
    with pytest.raises(Unparsable):
        grade_expected("run_tests.sh: No such file", expected)


def test_the_file_grades_alone_in_an_isolated_interpreter(tmp_path: Path) -> None:
    rule = {"rule": "swe-bench", "parser": "pytest", "fail_to_pass": ["f g"], "pass_to_pass": []}
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    run = [sys.executable, "-I", verdicts.__file__, str(tmp_path / "log"), str(tmp_path / "rule.json"), str(tmp_path)]
    (tmp_path / "log").write_bytes(marked("PASSED f g\n").encode() + b"\xff\xfe")
    subprocess.run(run, check=True)
    assert (tmp_path / "reward.txt").read_text() == "1\n"
    assert json.loads((tmp_path / "report.json").read_text())["resolution"] == "FULL"
    (tmp_path / "reward.txt").unlink()
    (tmp_path / "log").write_text("")
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("no verdict: the log has no '>>>>> Start Test Output'")
    assert not (tmp_path / "reward.txt").exists()

"""From the text a test command printed to a status for each test, and from the statuses to a verdict.

Owns the log formats of imported tasks and nothing else. This file is also copied into the tests of every imported task
and run there, by whatever Python 3.7 or later the image has: it imports the standard library alone.

A log is text that code under test can write to. A rule may be ``strict``: then what does not fit together in the log is
a *flag*, and a flagged log is worth 0. A log that was forged well is not found here; see docs/grading.md.
The rules are those of the SWE-bench harness (swebench 5.0.2) and of R2E-Gym, from their published behaviour.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code: "
BAD_MARKERS = (
    ">>>>> Patch Apply Failed",
    ">>>>> Reset Failed",
    ">>>>> Tests Errored",
    ">>>>> Tests Timed Out",
)
_NOT_STARTED = ("126", "127")  # a shell's exit codes for a command that cannot be run or found
_STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\r")
_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f]")
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_SIGNS = re.compile(
    r"^=+ (test session starts|short test summary info|ERRORS|FAILURES|no tests ran\b.*) ?=+$"
    r"|^=* ?(no tests ran|\d+ (passed|failed|errors?|skipped|xfailed|xpassed|deselected))\b.* in [\d.]+s"
    r"|^ImportError while loading conftest"
    r"|^Ran \d+ tests? in |^Found \d+ test\(s\)|^=+ test process starts =+$"
    r'|^  File "/testbed/',  # a traceback through the repository: it is what broke the run
    re.MULTILINE,
)


class Unparsable(ValueError):
    """The log does not say how the tests went; the message says what is missing."""


def status_map(log: str, parser: str) -> dict[str, str]:
    """The last status of each test a log names: PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS.

    Args:
        log: what the test command printed, without the markers around it.
        parser: one of ``PARSERS``.

    Raises:
        Unparsable: no such parser.
    """
    if parser not in PARSERS:
        raise Unparsable(f"unknown log parser {parser!r}; known: {', '.join(sorted(PARSERS))}")
    return PARSERS[parser](log)


def test_output(log: str) -> str:
    """What stands between the markers, with or without quotes around them.

    Raises:
        Unparsable: a marker is missing, or the test command could not be started.
    """
    start, end = log.find(START), log.rfind(END)
    if start < 0 or end < start:
        raise Unparsable(f"the log has no {(START if start < 0 else END)!r}: the test run was cut off")
    codes = re.findall(re.escape(EXIT_CODE) + r"(\d+)", log[end:])
    if codes and codes[-1] in _NOT_STARTED:
        raise Unparsable(f"the test command could not be started (exit code {codes[-1]})")
    return log[start + len(START) : end]


def ran(output: str) -> bool:
    """Whether the output shows that a test runner was at work, even if no test came of it."""
    return _SIGNS.search(_plain(output)) is not None


def verdict(
    statuses: Mapping[str, str],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    eval_type: str = "pass_and_fail",
) -> dict[str, Any]:
    """SWE-bench's rule: ``FULL`` iff all of both lists are ok, ``PARTIAL`` iff some of the first and all of the second.

    A fail-to-pass test is ok iff PASSED or XFAIL; a pass-to-pass test also when SKIPPED; a missing one is not. With
    ``eval_type="fail_only"`` only an explicit FAILED is not ok.

    Returns:
        ``resolution``, the fraction of each list that is ok (1.0 for an empty one), and the ids that are ``failed``.
    """
    failed = {
        "fail_to_pass": [id for id in fail_to_pass if not _is_ok(_find(statuses, id), ("PASSED", "XFAIL"), eval_type)],
        "pass_to_pass": [
            id for id in pass_to_pass if not _is_ok(_find(statuses, id), ("PASSED", "XFAIL", "SKIPPED"), eval_type)
        ],
    }
    f2p = 1.0 - len(failed["fail_to_pass"]) / len(fail_to_pass) if fail_to_pass else 1.0
    p2p = 1.0 - len(failed["pass_to_pass"]) / len(pass_to_pass) if pass_to_pass else 1.0
    resolution = "NO"
    if p2p == 1.0 and f2p > 0.0:
        resolution = "FULL" if f2p == 1.0 else "PARTIAL"
    return {"resolution": resolution, "fail_to_pass": f2p, "pass_to_pass": p2p, "failed": failed}


def grade_swe_bench(
    log: str,
    parser: str,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    eval_type: str = "pass_and_fail",
    strict: bool = False,
) -> dict[str, Any]:
    """The verdict on a whole evaluation log, with ``reward`` 1.0 iff it is ``FULL``. A bad marker is ``NO``.

    Raises:
        Unparsable: the log was cut off, or no test is in it and nothing shows that a runner was at work.
    """
    bad = [marker for marker in BAD_MARKERS if marker in log]
    if bad:
        return {"reward": 0.0, "resolution": "NO", "reason": bad[0], "flags": []}
    output = test_output(log)
    statuses = status_map(output, parser)
    if not statuses and not ran(output):
        raise Unparsable("no test is in the log, and nothing shows that a test runner was at work")
    found = verdict(statuses, fail_to_pass, pass_to_pass, eval_type)
    codes = re.findall("^" + re.escape(EXIT_CODE) + r"(\d+)$", log[log.rfind(END) :], re.MULTILINE)
    flags = suspicions(output, parser, int(codes[-1]) if codes else None) if strict else []
    repeated = [mark for mark in (START, END) if log.split("\n").count(mark) > 1] if strict else []
    flags += [f"the log has the line {mark!r} more than once" for mark in repeated]
    return {"reward": float(found["resolution"] == "FULL" and not flags), **found, "flags": flags}


def grade_all_passed(log: str, parser: str, strict: bool = False) -> dict[str, Any]:
    """Terminal-bench's rule: 1.0 iff there are tests and every one is PASSED.

    Raises:
        Unparsable: no test is in the log, and nothing shows that a test runner was at work.
    """
    statuses = status_map(log, parser)
    if not statuses and not ran(log):
        raise Unparsable("no test is in the log, and nothing shows that a test runner was at work")
    failed = sorted(id for id, status in statuses.items() if status != "PASSED")
    flags = suspicions(log, parser) if strict else []
    solved = bool(statuses) and not failed and not flags
    return {"reward": float(solved), "tests": len(statuses), "failed": failed, "flags": flags}


def grade_expected(log: str, expected: Mapping[str, str], strict: bool = False) -> dict[str, Any]:
    """R2E-Gym's rule: 1.0 iff the run has as many tests as expected and each has the expected status, FAILED ones too.

    Raises:
        Unparsable: no test is in the log, and nothing shows that a test runner was at work.
    """
    statuses = status_map(log, "r2e")
    if not statuses and not ran(log):
        raise Unparsable("no test is in the log, and nothing shows that a test runner was at work")
    wanted = {_before_message(_plain(id)): status for id, status in expected.items()}
    differ = sorted(id for id in wanted.keys() | statuses.keys() if wanted.get(id) != statuses.get(id))
    flags = suspicions(log, "r2e") if strict else []
    return {"reward": float(not differ and not flags), "tests": len(statuses), "differ": differ, "flags": flags}


def suspicions(output: str, parser: str, exit_code: int | None = None) -> list[str]:
    """What in a run's output does not fit together, as when something else than the runner wrote into it.

    The runner ends with a summary: without one, no pass is believed, nor one that stands after it. There are not more
    passes than it counts. No test has two results that exclude each other; of unittest's, none has two passes. Where
    there is one summary, it and the exit code, if that is known, agree.
    """
    lines = _plain(output).split("\n")
    is_unittest = parser in ("unittest", "django")
    ends = [number for number, line in enumerate(lines) if (_UNITTEST_END if is_unittest else _PYTEST_END).match(line)]
    results = list(_results(lines, parser))
    passed = {id for _, id, status in results if status == "PASSED"}
    flags = []
    if passed and not ends:
        flags.append("tests passed in a run that has no summary of its runner's")
    elif any(number > ends[-1] and status == "PASSED" for number, _, status in results):
        flags.append("a test passed after the runner's own summary")
    counted = sum(_counted(lines[number], is_unittest) for number in ends)
    if ends and len(passed) > counted:
        flags.append(f"{len(passed)} tests passed where the runner counted {counted}")
    bad = {id for _, id, status in results if status in ("FAILED", "ERROR")}
    # A test of pytest's that passed may break afterwards, while it is taken down.
    broken = {id for _, id, status in results if status == "ERROR"} if not is_unittest else set()
    flags += [f"{id} both passed and failed" for id in sorted(passed & bad - broken)[:3]]
    if is_unittest:
        passes = [id for _, id, status in results if status == "PASSED"]
        flags += [f"{id} passed twice" for id in sorted(passed) if passes.count(id) > 1][:3]
    if exit_code is not None and len(ends) == 1 and not flags:
        says_failed = bool(bad) or re.search(r"\b(failed|errors?)\b", _verdict_of(lines, ends[0]), re.IGNORECASE)
        if says_failed and exit_code == 0:
            flags.append("the run left with 0 though a test failed")
        elif is_unittest and not says_failed and exit_code != 0:
            flags.append(f"the run left with {exit_code} though no test failed")
    return flags


def _results(lines: Sequence[str], parser: str) -> Iterator[tuple[int, str, str]]:
    """Line, test and status of what names an exact test."""
    for number, line in enumerate(lines):
        if parser in ("unittest", "django"):
            match = re.fullmatch(r"(?P<test>\w+ \([\w.]+\)) \.\.\. (?P<said>.*)", line.strip())
            found = {match["test"]: _unittest_result(match["said"])} if match else {}
        else:
            found = PARSERS["pytest" if parser == "r2e" else parser](line)
        for id, status in found.items():
            if status:
                yield number, id, status


def _counted(line: str, is_unittest: bool) -> int:
    return sum(int(count) for count in re.findall(r"Ran (\d+)" if is_unittest else r"(\d+) (?:x?passed|error)", line))


def _verdict_of(lines: Sequence[str], end: int) -> str:
    """pytest's last line itself, or what unittest says below it."""
    return lines[end] if not lines[end].startswith("Ran ") else "\n".join(lines[end + 1 : end + 3])


_UNITTEST_END = re.compile(r"Ran \d+ tests? in ")
_PYTEST_END = re.compile(r"(?:[\w.-]+: )?=* ?(?:no tests ran|\d+ [a-z]+\b).* in [\d.]+s(?:econds)?\b")


def _find(statuses: Mapping[str, str], id: str) -> list[str]:
    """The statuses of the test ``id``: of all tests it may mean, where a space has cut it off within its brackets."""
    if id in statuses:
        return [statuses[id]]
    if id.count("[") > id.count("]"):
        return [status for name, status in statuses.items() if name.startswith(id) and name[len(id)].isspace()]
    return []


def _is_ok(found: Sequence[str], passing: Sequence[str], eval_type: str) -> bool:
    if eval_type == "fail_only":
        return "FAILED" not in found
    return bool(found) and all(status in passing for status in found)


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text)


def _before_message(text: str) -> str:
    """A test id without the `` - message`` after it; a dash within the brackets of its parameters is part of it."""
    parts = text.split(" - ")
    for count in range(1, len(parts)):
        id = " - ".join(parts[:count])
        if id.count("[") <= id.count("]"):
            return id
    return text


def _pytest(log: str) -> dict[str, str]:
    """Lines of a ``-rA`` summary, ``STATUS id`` or ``STATUS id - message``. Ids are whole, spaces and all."""
    statuses = {}
    for line in _plain(log).split("\n"):
        status, _, rest = line.partition(" ")
        if status in _STATUSES and rest.strip():
            statuses[_before_message(rest.strip())] = status
    return statuses


def _pytest_v2(log: str) -> dict[str, str]:
    """As ``pytest``, and the lines of ``-v``: ``id STATUS`` with or without a percentage after it."""
    statuses = {}
    for line in _CONTROLS.sub("", _plain(log)).split("\n"):
        match = re.match(r"(?P<id>\S.*?) (?P<status>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: +\[ *\d+%\])?$", line)
        if match and "::" in match["id"] and match["id"].split(" ")[0] not in _STATUSES:
            statuses[match["id"]] = match["status"]
        status, _, rest = line.partition(" ")
        if status in _STATUSES and rest.strip():
            statuses[_before_message(rest.strip())] = status
    return statuses


def _pytest_options(log: str) -> dict[str, str]:
    """As ``pytest``, with a parameter that is a path shortened to its last part: ``t[/a/b/c]`` is ``t[/c]``."""
    return {_short_option(id): status for id, status in _pytest(log).items()}


def _short_option(id: str) -> str:
    match = re.fullmatch(r"(?P<name>.*?)\[(?P<option>.*)\]", id)
    if match is None or not match["option"].startswith("/") or match["option"].startswith("//") or "*" in id:
        return id
    return f"{match['name']}[/{match['option'].rsplit('/', 1)[-1]}]"


def _tox(log: str) -> dict[str, str]:
    """As ``pytest-v2``; a tox that runs environments side by side puts their names before each line."""
    return _pytest_v2(re.sub(rf"^[\w.-]+: (?=(?:{'|'.join(_STATUSES)}) |\S+::)", "", log, flags=re.MULTILINE))


_UNITTEST_ID = re.compile(r"\w+ \([\w.]+\)")
_UNITTEST_RESULTS = (
    (re.compile(r"ok", re.IGNORECASE), "PASSED"),
    (re.compile(r"skipped\b.*"), "SKIPPED"),
    (re.compile(r"expected failure"), "XFAIL"),
    (re.compile(r"unexpected success"), "FAILED"),
    (re.compile(r"FAIL"), "FAILED"),
    (re.compile(r"ERROR"), "ERROR"),
)


def _unittest(log: str) -> dict[str, str]:
    """``-v`` lines ``test ... result``; the result may come on a later line, after what the test printed.

    A test with a docstring prints two lines and is known by the second, as the harness knows it.
    """
    statuses: dict[str, str] = {}
    waiting = ""  # the test whose result is still to come
    for raw in _plain(log).split("\n"):
        line = raw.strip()
        heading = re.fullmatch(r"(FAIL|ERROR): (?P<test>\S.*)", line)
        if heading:
            test = _UNITTEST_ID.match(heading["test"])  # a subtest's parameters stand after it
            statuses[test[0] if test else heading["test"]] = "FAILED" if heading[1] == "FAIL" else "ERROR"
            continue
        *names, said = re.split(r" \.\.\.(?: |$)", line)
        status = _unittest_result(said)
        if names and status:
            statuses[_unittest_name(names)] = status
        elif status and waiting:
            statuses[waiting] = status
        elif names and (not waiting or _UNITTEST_ID.match(names[0])):
            waiting = names[0].strip()
            continue
        waiting = "" if status else waiting
    return statuses


def _unittest_name(names: Sequence[str]) -> str:
    """The test a result is about: one whose subtests failed leaves its line open, so the next stands behind it."""
    last = names[-1].strip()
    return last if _UNITTEST_ID.match(last) else " ... ".join(names).strip()


def _unittest_result(said: str) -> str:
    return next((status for pattern, status in _UNITTEST_RESULTS if pattern.fullmatch(said)), "")


def _django(log: str) -> dict[str, str]:
    """As ``unittest``; a migration that is applied while a test waits may stand before the test's own line."""
    return _unittest(re.sub(r"^\s*Applying \S+?\.\.\.(?=test_\w+ \()", "", log, flags=re.MULTILINE))


def _r2e(log: str) -> dict[str, str]:
    """PASSED, FAILED and ERROR of the summary at the end; ids lose their file and have ``.`` for the other ``::``."""
    parts = _SUMMARY.split(_plain(log))
    found = _pytest(parts[-1]) if len(parts) > 1 else {}
    return {
        ".".join(id.split("::")[1:]) or id: status
        for id, status in found.items()
        if status in ("PASSED", "FAILED", "ERROR")
    }


PARSERS: dict[str, Callable[[str], dict[str, str]]] = {
    "pytest": _pytest,
    "pytest-v2": _pytest_v2,
    "pytest-options": _pytest_options,
    "tox": _tox,
    "unittest": _unittest,
    "django": _django,
    "r2e": _r2e,
}


def grade(log: str, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Grade a log by a rule: ``{"rule": "swe-bench" | "all-passed" | "expected", ...}`` with that function's arguments.

    Raises:
        Unparsable: the log does not say how the tests went.
    """
    rules: dict[str, Callable[..., dict[str, Any]]] = {
        "swe-bench": grade_swe_bench,
        "all-passed": grade_all_passed,
        "expected": grade_expected,
    }
    return rules[rule["rule"]](log, **{key: value for key, value in rule.items() if key != "rule"})


def main(log: Path, rule: Path, logs: Path) -> None:
    """Write ``reward.txt`` and ``report.json`` to ``logs``; an unparsable log leaves no reward, which is no 0."""
    try:
        report = grade(log.read_text("utf-8", errors="replace"), json.loads(rule.read_text("utf-8")))
    except Unparsable as error:
        sys.exit(f"no verdict: {error}")
    (logs / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    (logs / "reward.txt").write_text(f"{report['reward']:g}\n", "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))

"""Reward files, canaries, the reading of a run's records, SWE-bench's rules: the parts of grading that need no box."""

from __future__ import annotations

import ast
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym.errors import ConfigError, ScorerFailure
from glmgym_envs.grading import PytestOutcome, TrustedTests, grade_f2p_p2p, read_rewards
from glmgym_envs.grading.canary import Canary, plant
from glmgym_envs.grading.modes import Artifact
from glmgym_envs.grading.pytest_run import _read


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"reward.json": b'{"reward": 1}'}, {"reward": 1.0}),
        ({"reward.json": b'{"speed": 0.5, "size": -2}\n'}, {"speed": 0.5, "size": -2.0}),
        ({"reward.json": b" 0.25 "}, {"reward": 0.25}),
        ({"reward.txt": b"1\n"}, {"reward": 1.0}),
        ({"reward.txt": b"1e-3"}, {"reward": 0.001}),
        ({"reward.json": b'{"reward": 0.5}', "reward.txt": b"0.50"}, {"reward": 0.5}),
        ({"reward.json": b'{"speed": 0.5}', "reward.txt": b"0.5"}, {"speed": 0.5}),
        ({"rewards.json": b'{"reward": 1}'}, {"reward": 1.0}),
        ({"test-stdout.txt": b"PASSED", "reward.txt": b"0"}, {"reward": 0.0}),
    ],
)
def test_reward_files_are_read(files: dict[str, bytes], expected: dict[str, float]) -> None:
    """E3: reward.json before reward.txt, which says the same or is not there."""
    assert {reward.name: reward.value for reward in read_rewards(files)} == expected


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "neither reward.json nor reward.txt"),
        ({"reward.txt": b""}, "reward.txt is empty"),
        ({"reward.json": b" \n"}, "reward.json is empty"),
        ({"reward.json": b'{"reward": NaN}'}, "not a finite number"),
        ({"reward.json": b'{"reward": Infinity}'}, "not a finite number"),
        ({"reward.json": b"1e309"}, "'1e309'"),
        ({"reward.json": b"1" + b"0" * 400}, "not a finite number"),
        ({"reward.json": b'{"reward": "1"}'}, '\'{"reward": "1"}\''),
        ({"reward.json": b'{"reward": true}'}, "not a finite number"),
        ({"reward.json": b'{"reward": {"a": 1}}'}, "not a finite number"),
        ({"reward.json": b"[1]"}, "not a finite number"),
        ({"reward.json": b"null"}, "not a finite number"),
        ({"reward.json": b"{}"}, "without a reward"),
        ({"reward.json": b'{"reward": 0, "reward": 1}'}, "there twice"),
        ({"reward.json": b"{"}, "is not JSON"),
        ({"reward.json": b"[" * 60_000}, "reward.json is not JSON"),
        ({"reward.json": b"\xff"}, "is not JSON"),
        ({"reward.txt": b"nan"}, "not a finite number"),
        ({"reward.txt": b"1e309"}, "not a finite number"),
        ({"reward.txt": b"1_0"}, "not a finite number"),
        ({"reward.txt": b"pass"}, "'pass'"),
        ({"reward.txt": b"\xff\xfe"}, "not a finite number"),
        ({"reward.json": b'{"reward": 1}', "reward.txt": b"0"}, "must agree"),
        ({"reward.json": b'{"a": 1, "b": 1}', "reward.txt": b"1"}, "must agree"),
        ({"reward.json": b'{"reward": 1}', "rewards.json": b'{"reward": 0}'}, "must agree"),
        ({"reward.json": b'{"reward": 1}', "reward.txt": b"oops"}, "reward.txt"),
        ({"reward.txt": b" " * 70_000}, "70000 bytes"),
    ],
)
def test_a_reward_file_that_says_nothing_is_a_failure_and_never_0(files: dict[str, bytes], says: str) -> None:
    """E3."""
    with pytest.raises(ScorerFailure) as failure:
        read_rewards(files)
    assert says in str(failure.value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_both_files_take_every_finite_number(value: float) -> None:
    for files in ({"reward.json": json.dumps({"reward": value}).encode()}, {"reward.txt": repr(value).encode()}):
        assert read_rewards(files)[0].value == value


_TESTS = b'''"""Tests."""
import pytest


def test_one():
    """It adds."""
    value = 1 + 1
    assert value == 2


def test_fixture(tmp_path):
    assert str(tmp_path) == "x"


@pytest.mark.xfail
def test_expected():
    assert 1 == 2


class TestWords:
    def test_upper(self):
        assert "a".upper() == "A"

    def test_effect(self):
        self.x = 1
        assert self.x == 1
'''


def _bases(planted_tests: bytes, globals_: dict[str, object]) -> dict[str, object]:
    exec(compile(ast.parse(planted_tests), "tests", "exec"), globals_)
    return globals_


@pytest.mark.parametrize("seed", range(20))
def test_canaries_fail_where_the_tests_pass_and_change_no_line(seed: int) -> None:
    """The file as it was is what is left without the new functions; each of those raises."""
    planted = plant({"tests/test_a.py": _TESTS}, random.Random(seed))
    found = _bases(planted.files["tests/test_a.py"], {})
    assert {canary.original for canary in planted.canaries} == {
        "",
        "tests/test_a.py::test_one",
        "tests/test_a.py::TestWords::test_upper",
    }
    names = [canary.id.split("::")[1:] for canary in planted.canaries]
    assert len({tuple(name) for name in names}) == 4
    for name in names:
        owner = found[name[0]]
        call = getattr(owner(), name[1]) if len(name) == 2 else owner  # type: ignore[operator]
        with pytest.raises((AssertionError, KeyError)):
            call()
    found["test_one"]()  # type: ignore[operator]
    kept = [line for line in planted.files["tests/test_a.py"].split(b"\n") if line in _TESTS.split(b"\n")]
    assert [line for line in _TESTS.split(b"\n") if line] == [
        line for line in _subsequence(kept, _TESTS.split(b"\n")) if line
    ]


def _subsequence(lines: list[bytes], wanted: list[bytes]) -> list[bytes]:
    """``wanted`` as far as it stands in ``lines`` in order."""
    rest = iter(lines)
    return [line for line in wanted if line in rest]


def test_canaries_differ_between_runs_and_start_with_the_tests_that_matter() -> None:
    many = {f"tests/test_{n}.py": f"def test_it_{n}():\n    assert {n} + 1 == {n + 1}\n".encode() for n in range(40)}
    runs = [plant(many, random.Random(seed), ["tests/test_7.py::test_it_7"]).canaries for seed in range(10)]
    assert len({canary.id for run in runs for canary in run if not canary.original}) > 10
    assert all(run[2].original == "tests/test_7.py::test_it_7" and len(run) == 6 for run in runs)


@pytest.mark.parametrize("content", [b"def (", b"x = '\xff'", b"# -*- coding: latin-1 -*-\nx = '\xe9'\n"])
def test_a_file_that_cannot_be_parsed_stays_and_gets_a_neighbour(content: bytes) -> None:
    planted = plant({"tests/test_a.py": content}, random.Random(1))
    assert planted.files["tests/test_a.py"] == content
    (other,) = planted.files.keys() - {"tests/test_a.py"}
    assert other.startswith("tests/test_")
    assert all(canary.id.startswith(f"{other}::") for canary in planted.canaries)


def _told(*records: dict[str, object], exit: int = 1, nonce: str = "n", extra: str = "") -> dict[str, object]:
    stream = "".join(f"{nonce} {json.dumps(record)}\n" for record in records) + extra
    return {"exit": exit, "timed_out": False, "stream": stream, "output": ""}


def _test(id: str, status: str) -> dict[str, object]:
    return {"kind": "test", "id": id, "status": status, "text": ""}


GOOD = "t.py::test_a[a b\nc]"
RUN = (
    {"kind": "start", "ids": [GOOD, "t.py::canary", "t.py::bent[1]", "t.py::test_b"]},
    _test(GOOD, "PASSED"),
    _test("t.py::canary", "FAILED"),
    _test("t.py::bent[1]", "FAILED"),
    _test("t.py::test_b", "SKIPPED"),
    {"kind": "end", "exit": 1},
)
CANARIES = (Canary("t.py::canary"), Canary("t.py::bent", GOOD.partition("[")[0]))


def test_a_run_whose_records_fit_has_its_exact_ids_and_no_flag() -> None:
    outcome = _read(_told(*RUN), "n", CANARIES)
    assert outcome == PytestOutcome({GOOD: "PASSED", "t.py::test_b": "SKIPPED"}, (), outcome.log)


@pytest.mark.parametrize(
    ("told", "flag"),
    [
        (_told(*RUN[:-1]), "did not come to its own end"),
        (_told(*RUN[1:]), "did not come to its own end"),
        (_told(*RUN, RUN[0]), "did not come to its own end"),
        (_told(*RUN[:1], *RUN[2:]), "1 tests have no result"),
        (_told(*RUN, exit=0), "left with 0 where pytest said 1"),
        (_told(*RUN, exit=-9), "left with -9"),
        (_told(*RUN, _test(GOOD, "PASSED")), "no collected test's, or its second"),
        (_told(*RUN, _test("t.py::test_c", "PASSED")), "no collected test's, or its second"),
        (_told(*RUN, nonce="m"), "something else wrote"),
        (_told(*RUN, extra="passed\n"), "something else wrote"),
        (_told(*RUN, extra="n {\n"), "something else wrote"),
        (_told(*RUN, extra='n {"kind": "test"}\n'), "something else wrote"),
        (_told(*RUN, {"kind": "changed", "name": "time.time"}), "replaced time.time"),
        (_told(*RUN[:2], _test("t.py::canary", "PASSED"), *RUN[3:]), "did not fail"),
        (_told(*RUN[:2], _test("t.py::canary", "SKIPPED"), *RUN[3:]), "did not fail"),
        (_told(*RUN[:3], _test("t.py::bent[1]", "PASSED"), *RUN[4:]), "did not fail"),
        (_told({"kind": "start", "ids": [GOOD]}, RUN[1], RUN[5]), "a canary was not collected"),
    ],
)
def test_a_run_whose_records_do_not_fit_is_flagged(told: dict[str, object], flag: str) -> None:
    outcome = _read(told, "n", CANARIES)
    assert any(flag in each for each in outcome.flags), outcome.flags
    assert grade_f2p_p2p(outcome, [GOOD], [])[0].value == 0


def test_a_canary_bent_from_a_test_that_is_skipped_says_nothing() -> None:
    records = (*RUN[:1], _test(GOOD, "SKIPPED"), RUN[2], _test("t.py::bent[1]", "SKIPPED"), *RUN[4:])
    assert _read(_told(*records), "n", CANARIES).flags == ()


@pytest.mark.parametrize(
    ("statuses", "flags"),
    [
        ({"A::test": "PASSED", "A::bent": "FAILED", "B::test": "PASSED", "B::bent": "FAILED"}, ()),
        ({"A::test": "PASSED", "A::bent": "PASSED", "B::test": "PASSED", "B::bent": "FAILED"}, ("did not fail",)),
        ({"A::test": "PASSED", "A::bent": "FAILED", "B::test": "SKIPPED", "B::bent": "SKIPPED"}, ()),
        ({"A::test": "SKIPPED", "A::bent": "SKIPPED", "B::test": "SKIPPED", "B::bent": "SKIPPED"}, ()),
    ],
)
def test_a_canary_of_a_class_that_others_inherit_from_is_theirs(
    statuses: dict[str, str], flags: tuple[str, ...]
) -> None:
    """The class itself is not collected; the canary shows in neither the statuses nor the log."""
    named = {f"t.py::{name}": status for name, status in statuses.items()}
    records = ({"kind": "start", "ids": list(named)}, *(_test(id, status) for id, status in named.items()))
    told = _told(*records, {"kind": "end", "exit": 1})
    outcome = _read(told, "n", (Canary("t.py::Mixin::bent", "t.py::Mixin::test"),))
    assert outcome.statuses == {id: status for id, status in named.items() if not id.endswith("bent")}
    assert "bent" not in outcome.log
    assert [any(flag in each for each in outcome.flags) for flag in flags] == [True] * len(flags)
    assert len(outcome.flags) == len(flags)


def test_a_file_that_cannot_be_collected_is_a_note() -> None:
    records = ({"kind": "start", "ids": []}, {"kind": "broken", "id": "t.py", "text": "SyntaxError"})
    outcome = _read(_told(*records, {"kind": "end", "exit": 2}, exit=2), "n", CANARIES)
    assert (outcome.flags, outcome.notes) == ((), ("t.py could not be collected",))


@pytest.mark.parametrize(
    ("status", "f2p", "p2p"),
    [
        ("PASSED", 1, 1),
        ("XFAIL", 1, 1),
        ("SKIPPED", 0, 1),
        ("FAILED", 0, 0),
        ("ERROR", 0, 0),
        ("XPASS", 0, 0),
        (None, 0, 0),
    ],
)
def test_each_list_has_its_rule(status: str | None, f2p: int, p2p: int) -> None:
    """SWE-bench's: XFAIL is fine, SKIPPED only for P2P, missing never."""
    outcome = PytestOutcome({"t::good": "PASSED"} | ({"t::x y": status} if status else {}))
    assert grade_f2p_p2p(outcome, ["t::x y"], ["t::good"])[0].value == f2p
    assert grade_f2p_p2p(outcome, ["t::good"], ["t::x y"])[0].value == p2p


def test_fractions_are_told_and_weigh_nothing() -> None:
    outcome = PytestOutcome({"a": "PASSED", "b": "FAILED", "c": "PASSED"})
    rewards = grade_f2p_p2p(outcome, ["a", "b"], ["c"])
    assert [(reward.name, reward.value, reward.weight) for reward in rewards] == [
        ("tests", 0, 1),
        ("f2p", 0.5, 0),
        ("p2p", 1, 0),
    ]
    assert rewards[0].reason == "FAILED b"


def test_a_task_that_asks_for_nothing_cannot_be_graded() -> None:
    with pytest.raises(ScorerFailure, match="F2P list is empty"):
        grade_f2p_p2p(PytestOutcome({}), [], ["a"])


@pytest.mark.parametrize("path", ["../x_test.py", "/test_a.py", "a//test_a.py", "a/../test_a.py", "", "a\0/test_a.py"])
def test_a_trusted_path_stays_below_the_root(path: str) -> None:
    with pytest.raises(ConfigError, match="must be a plain path"):
        TrustedTests({path: b"", "test_b.py": b""})


def test_a_trusted_copy_without_tests_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a test file"):
        TrustedTests({"conftest.py": b""})


@pytest.mark.parametrize("path", ["out", "/", "/logs/../etc", "", "/a\0"])
def test_an_artifact_is_an_absolute_path_that_goes_nowhere_up(path: str) -> None:
    with pytest.raises(ConfigError, match="artifact"):
        Artifact(path)

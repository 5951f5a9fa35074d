"""Offline verification: a sound run passes, and each way of being unsound is a sentence that names the trajectory."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glmgym.chat import Mark, load_tokenizer
from glmgym.errors import ConfigError
from glmgym.store import State, TrajectoryStore
from glmgym.store.codec import encode
from glmgym.trajectory import Outcome, Provenance, Reward, Segment, SegmentEnd, Span, SpanKind, Stop, Trajectory
from glmgym.verify import VerifyReport, Vocabulary, trajectory_problems, verify_run, verify_store

TOKENIZER = Path(__file__).parent.parent / "trainers/glmgym_trainers/assets/tokenizer/tokenizer.json"
USER, OBS, END, ASSISTANT, END_THINK = 90, 91, 92, 93, 94
VOCABULARY = Vocabulary(100, frozenset({USER, OBS, END}), frozenset({USER, OBS, ASSISTANT}), "abc", END_THINK)


def prompt(*ids: int) -> Span:
    return Span(SpanKind.PROMPT, np.array(ids))


def observation(*ids: int) -> Span:
    return Span(SpanKind.OBSERVATION, np.array(ids))


def action(*ids: int, version: int = 0) -> Span:
    return Span(SpanKind.ACTION, np.array(ids), np.full(len(ids), -0.5), np.full(len(ids), version))


def summary(*ids: int) -> Span:
    return Span(SpanKind.SUMMARY, np.array(ids), np.full(len(ids), -0.5), np.zeros(len(ids)))


def carried(*ids: int) -> Span:
    return Span(SpanKind.CARRIED, np.array(ids))


def trajectory(*segments: Segment, sha256: str = "abc") -> Trajectory:
    outcome = Outcome(Stop.DONE, (Reward("r", 1.0),))
    return Trajectory("t00000001", "task", "env-v0", segments, outcome, Provenance(tokenizer_sha256=sha256))


SOUND = {
    "the stop is sampled, the observation goes on after it": [prompt(1), action(10, 11, OBS), observation(12)],
    "another marker was sampled than the observation's": [prompt(1), action(10, END), observation(OBS, 12)],
    "the turn was cut and the marker inserted": [prompt(1), action(10, 11), observation(OBS, 12), action(3, USER)],
    "the last turn was cut": [prompt(1), action(10, 11)],
    "a generation went on after a weight switch": [prompt(1), action(10), action(11, OBS, version=1), observation(12)],
    "the largest id": [prompt(99), action(USER)],
}
UNSOUND = {
    "span 1: the role marker 91 was sampled, and then rendered a second time": [
        prompt(1),
        action(10, 11, OBS),
        observation(OBS, 12),
    ],
    "span 1: a turn without a stop token is followed by an observation without a role marker": [
        prompt(1),
        action(10, 11),
        observation(12),
    ],
    "span 1: the turn goes on after its stop token": [prompt(1), action(10, OBS, 11)],
    "token id 100 at position 1 is outside the vocabulary of 100": [prompt(1, 100), action(USER)],
}


@pytest.mark.parametrize("name", SOUND)
def test_t3_a_turn_ends_with_one_role_marker(name: str) -> None:
    """T3: the marker that ends a turn is sampled, or inserted when it was not, and is there once."""
    assert list(trajectory_problems(trajectory(Segment(tuple(SOUND[name]))), VOCABULARY)) == []


@pytest.mark.parametrize("problem", UNSOUND)
def test_t3_a_turn_that_ends_otherwise_is_named(problem: str) -> None:
    """T3: rendered twice, never rendered, or sampled in the middle."""
    spans = tuple(UNSOUND[problem])
    assert list(trajectory_problems(trajectory(Segment(spans)), VOCABULARY)) == [f"segment 0: {problem}"]
    if "vocabulary" in problem:
        assert list(trajectory_problems(trajectory(Segment(spans)), None)) == []


def test_versions_do_not_go_backwards_over_turns_and_segments() -> None:
    forked = Segment((prompt(1), action(2, USER, version=4)), SegmentEnd.FORKED)
    after = lambda version: Segment((prompt(1), action(3, USER, version=version)))  # noqa: E731
    assert list(trajectory_problems(trajectory(forked, after(4)), VOCABULARY)) == []
    (problem,) = trajectory_problems(trajectory(forked, after(3)), VOCABULARY)
    assert problem == "policy versions go backwards from one turn to a later one"


def test_only_the_last_segment_ends_the_trajectory_and_each_starts_with_a_prompt() -> None:
    end = Segment((prompt(1), action(USER)))
    forked = Segment((prompt(1), action(USER)), SegmentEnd.FORKED)
    assert list(trajectory_problems(trajectory(forked, end), VOCABULARY)) == []
    assert list(trajectory_problems(trajectory(end, end), VOCABULARY)) == ["segment 0 of 2 ended by end"]
    assert list(trajectory_problems(trajectory(forked), VOCABULARY)) == ["segment 0 of 1 ended by forked"]
    (problem,) = trajectory_problems(trajectory(Segment((observation(1), action(USER)))), VOCABULARY)
    assert problem == "segment 0 starts with observation tokens instead of a prompt"


def test_ids_of_another_tokenizer_are_named() -> None:
    other = trajectory(Segment((prompt(1), action(USER))), sha256="other")
    assert list(trajectory_problems(other, VOCABULARY)) == ["it was recorded with another tokenizer than the run's"]
    assert list(trajectory_problems(trajectory(*other.segments, sha256=""), VOCABULARY)) == []


FIRST = (prompt(1), action(10, 11, OBS), observation(12, USER, 13), summary(20, 21, 22, USER))
BEFORE = Segment(FIRST, SegmentEnd.COMPACTED)


@pytest.mark.parametrize(
    ("copies", "bad"),
    [
        ([carried(20, 21, 22), prompt(5), carried(10, 11, OBS), carried(12), prompt(6)], []),
        ([carried(21)], []),  # a run may start and end anywhere: reasoning and the marker are left out
        ([carried(20, 22)], [1]),  # in order, but not in a row
        ([carried(22, 21)], [1]),
        ([carried(12, USER, 13, 20)], [1]),  # over the border of two spans
        ([carried(20, 21, 22), carried(10, 11, OBS, 12)], [2]),
        ([carried(21 << 8)], [1]),  # the bytes are there, one off the border of an id
    ],
)
def test_what_is_carried_over_a_compaction_was_there_before(copies: list[Span], bad: list[int]) -> None:
    after = Segment((prompt(1), *copies, action(30, USER)))
    problems = list(trajectory_problems(trajectory(BEFORE, after), None))
    assert problems == [
        f"segment 1: span {i} is carried, but no span before the compaction holds its {len(copies[i - 1])} ids in a row"
        for i in bad
    ]


@pytest.mark.parametrize(
    ("copy", "bad"),
    [
        ((10, END_THINK, 13, USER), False),  # reasoning 11, 12 is gone
        ((END_THINK, 13, USER), False),
        ((10, 11, 12, 13, USER, END_THINK), False),  # a turn cut in its reasoning is closed
        ((13, 10), True),
        ((10, 10), True),
    ],
)
def test_what_is_carried_over_a_fork_lost_its_reasoning_and_nothing_else(copy: tuple[int, ...], bad: bool) -> None:
    """T2."""
    before = Segment((prompt(1), action(10, 11, 12, 13, USER)), SegmentEnd.FORKED)
    after = Segment((prompt(1), carried(*copy), observation(USER, 7), action(30, USER)))
    problems = list(trajectory_problems(trajectory(before, after), VOCABULARY))
    text = f"segment 1: span 1 is carried, but span 1 before the fork does not hold its {len(copy)} ids in order"
    assert problems == [text] * bad
    assert list(trajectory_problems(trajectory(before, after), None)) == []  # which id is </think> is not known then


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((*FIRST, observation(3)), "span 3: a summary is followed by observation tokens"),
        (
            (prompt(1), action(10, OBS), summary(20)),
            "span 2: a summary follows action tokens instead of an observation",
        ),
        ((prompt(1), summary(20)), "span 1: a summary follows prompt tokens instead of an observation"),
        ((prompt(1), observation(2), summary(20, USER, 3)), "span 2: the summary goes on after its stop token"),
        ((prompt(1), carried(2), action(3, USER)), "span 1 is carried, but no segment came before"),
    ],
)
def test_a_summary_comes_after_an_observation_and_last(spans: tuple[Span, ...], problem: str) -> None:
    """Nothing stands between a turn and its observation, not even the summary."""
    assert list(trajectory_problems(trajectory(Segment(spans)), VOCABULARY)) == [f"segment 0: {problem}"]


def test_a_compacted_segment_ends_with_its_summary_or_with_the_request_for_one_of_no_tokens() -> None:
    end = Segment((prompt(1), action(30, USER)))
    asked = Segment((prompt(1), action(10, OBS), observation(12)), SegmentEnd.COMPACTED)
    assert list(trajectory_problems(trajectory(BEFORE, end), VOCABULARY)) == []
    assert list(trajectory_problems(trajectory(asked, end), VOCABULARY)) == []
    cut = Segment((prompt(1), action(10, OBS)), SegmentEnd.COMPACTED)
    (problem,) = trajectory_problems(trajectory(cut, end), VOCABULARY)
    assert problem == "segment 0: it was compacted after action tokens, not after a summary"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four: consumed, ready, failed at once, and running."""
    tokenizer = load_tokenizer(TOKENIZER.parent)
    marker = tokenizer.id_of(Mark.USER)
    policy = tmp_path / "run" / "checkpoints" / "step-000001" / "policy"
    policy.mkdir(parents=True)
    shutil.copy(TOKENIZER, policy)
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite") as store:
        for _ in range(4):
            store.start(store.issue("task", "env-v0", version=1))
        made = trajectory(Segment((prompt(1, 2), action(3, 4, marker, version=1))), sha256=tokenizer.sha256)
        store.finish(made)
        store.finish(replace(made, id="t00000002"))
        store.discard(["t00000003"], "interrupted")
        store.begin_step(["t00000001"], 1)
        store.consume(["t00000001"], version=2, trained={"t00000001": 3})
    return tmp_path / "run"


def edit(run: Path, sql: str, *values: object) -> VerifyReport:
    with sqlite3.connect(run / "trajectories" / "store.sqlite") as db:
        assert db.execute(sql, values).rowcount >= 1
    return verify_run(run)


def test_a_sound_run_passes_and_is_counted(run: Path) -> None:
    report = verify_run(run)
    assert report.problems == ()
    assert report.summary == "2 records, 10 tokens, 6 of them sampled: no problem"


def test_a_flipped_token_id_is_found(run: Path) -> None:
    """Token id 3 of trajectory 2 becomes 2: one bit."""
    with sqlite3.connect(run / "trajectories" / "store.sqlite") as db:
        ((ids,),) = db.execute("SELECT token_ids FROM records WHERE n = 2").fetchall()
    assert ids[8:12] == bytes([3, 0, 0, 0])
    report = edit(run, "UPDATE records SET token_ids = ? WHERE n = 2", ids[:8] + bytes([2]) + ids[9:])
    assert report.problems == ("trajectory t00000002: token_ids changed after writing (digest mismatch)",)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE trajectories SET num_trained = 2 WHERE n = 1", "2 tokens were trained, but 3 were sampled"),
        ("UPDATE trajectories SET consumed_version = 0 WHERE n = 1",
         "version 1 sampled it, yet it was consumed under version 0"),
        ("UPDATE trajectories SET reward = 0 WHERE n = 1", "the row says reward = 0.0, the record 1.0"),
        ("UPDATE trajectories SET num_sampled = 9 WHERE n = 1", "the row says num_sampled = 9, the record 3"),
        ("UPDATE trajectories SET task_id = 'x' WHERE n = 1", "the row says task_id = 'x', the record 'task'"),
        ("INSERT INTO changes VALUES (1, 0, 'consumed', '')", "it was consumed 2 times"),
        ("UPDATE trajectories SET state = 'ready' WHERE n = 1",
         "it is ready, but its history says issued -> running -> ready -> training -> consumed"),
        ("DELETE FROM changes WHERE n = 1 AND state = 'training'", "it went from ready to consumed"),
        ("DELETE FROM records WHERE n = 1", "it is consumed, but its record is missing"),
    ],
)  # fmt: skip
def test_each_broken_law_is_a_sentence_about_its_trajectory(run: Path, sql: str, problem: str) -> None:
    """T7 (all sampled tokens are trained), S1 and S4 (no double consumption), P3 (no version from the future)."""
    assert f"trajectory t00000001: {problem}" in edit(run, sql).problems


@pytest.mark.parametrize(("trained", "left_out"), [(0, 6), (4, 2), (6, 0)])
def test_what_an_algorithm_leaves_out_is_said_and_is_no_problem(tmp_path: Path, trained: int, left_out: int) -> None:
    """A whole trajectory, or its summaries; any other number is a loss (T7)."""
    asked = (prompt(1), action(10, OBS), observation(12), summary(20, USER))
    made = trajectory(Segment(asked, SegmentEnd.COMPACTED), Segment((prompt(1), action(30, USER))))
    with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
        store.add(made)
        store.begin_step(["t00000001"], 1)
        store.consume(["t00000001"], version=0, trained={"t00000001": trained})
        report = verify_store(store, None)
        assert report.problems == ()
        said = f"{left_out} sampled tokens were left out of the loss by the algorithm"
        assert report.notes == ((said,) if left_out else ())
    with sqlite3.connect(tmp_path / "store.sqlite") as db:
        db.execute("UPDATE trajectories SET num_trained = 5")
    with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
        (problem,) = verify_store(store, None).problems
        assert problem == "trajectory t00000001: 5 tokens were trained, but 6 were sampled"


def test_a_discard_without_a_reason_is_found(run: Path) -> None:
    report = edit(run, "UPDATE trajectories SET reason = '' WHERE n = 3")
    assert report.problems == ("trajectory t00000003: it was discarded without a reason",)


def test_a_lost_row_breaks_the_conservation_law(run: Path) -> None:
    """S1: issued == consumed + ready + running + training + discarded."""
    (problem,) = edit(run, "DELETE FROM trajectories WHERE n = 4").problems
    assert problem.startswith("the conservation law is broken: Counts(issued=4, not_started=0, running=0, ready=1")


def rewritten(change: Callable[[Trajectory], Trajectory], run: Path) -> VerifyReport:
    """Replace record 2 by a changed one with matching digests, as a broken writer would."""
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite", read_only=True) as store:
        record = encode(change(store.get("t00000002")))
    return edit(run, "UPDATE records SET spans = ?, token_ids = ?, logprobs = ?, versions = ?, digests = ? WHERE n = 2",
                record.spans, record.token_ids, record.logprobs, record.versions, record.digests)  # fmt: skip


def test_ids_are_held_against_the_tokenizer_of_the_run(run: Path) -> None:
    size = load_tokenizer(TOKENIZER.parent).vocab_size

    def change(old: Trajectory) -> Trajectory:
        return replace(old, segments=(Segment((prompt(1, size), old.segments[0].spans[1])),))

    report = rewritten(change, run)
    expected = f"trajectory t00000002: segment 0: token id {size} at position 1 is outside the vocabulary of {size}"
    assert report.problems == (expected,)
    config = run / "checkpoints" / "step-000001" / "policy" / "config.json"
    config.write_text(f'{{"vocab_size": {size + 8}}}')  # a padded embedding can sample ids the tokenizer does not use
    assert verify_run(run).problems == ()


def test_without_a_tokenizer_ids_are_unchecked_and_that_is_said(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    report = verify_run(run)
    assert report.problems == ()
    assert report.summary.endswith(": no problem; token ids unchecked: the run holds no tokenizer.json")


def test_a_run_can_be_verified_while_it_is_written(run: Path) -> None:
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite") as store:
        store.start(store.issue("task", "env-v0", version=1))
        assert verify_run(run).problems == ()


def test_a_directory_without_a_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no trajectories .* give the directory of a run"):
        verify_run(tmp_path)


def test_verification_sees_one_moment_of_a_run_that_goes_on(run: Path) -> None:
    """A record finished between two looks must not seem to be missing."""
    path = run / "trajectories" / "store.sqlite"

    class Meanwhile(TrajectoryStore):
        def recorded(self, state: State | None = None) -> list[str]:
            found = super().recorded(state)
            writer.finish(replace(writer.get("t00000001"), id="t00000004"))
            return found

    with TrajectoryStore.open(path) as writer, Meanwhile.open(path, read_only=True) as reader:
        assert verify_store(reader, None).problems == ()
        assert writer.counts().running == 0

"""Laws of the records: what cannot be constructed, what is derived, what cannot be changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_strategies import SEGMENTS, TRAJECTORIES, spans

from glmgym.errors import CaptureError, GlmgymError, SandboxFailure, boundary
from glmgym.trajectory import (
    NO_VERSION,
    Failure,
    Outcome,
    Reward,
    Segment,
    SegmentEnd,
    Span,
    SpanKind,
    Stop,
    Trajectory,
)

SAMPLED = [SpanKind.ACTION, SpanKind.SUMMARY]
UNSAMPLED = [SpanKind.PROMPT, SpanKind.OBSERVATION, SpanKind.CARRIED]


def action(ids: list[int], version: int = 0) -> Span:
    return Span(SpanKind.ACTION, np.array(ids), np.full(len(ids), -0.5), np.full(len(ids), version))


def prompt(ids: list[int]) -> Span:
    return Span(SpanKind.PROMPT, np.array(ids))


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize(("num_logprobs", "num_versions"), [(208, 207), (206, 207), (207, 208), (0, 207), (1, 207)])
def test_p4_a_count_that_differs_is_an_error_never_a_skip(kind: SpanKind, num_logprobs: int, num_versions: int) -> None:
    """P4: 208 log-probs for 207 tokens."""
    with pytest.raises(CaptureError, match=f"207 token ids came with {num_logprobs} log-probs and {num_versions} ver"):
        Span(kind, np.arange(207), np.full(num_logprobs, -1.0), np.zeros(num_versions, np.int32))


@pytest.mark.parametrize("kind", UNSAMPLED)
def test_tokens_that_nobody_sampled_have_no_logprobs(kind: SpanKind) -> None:
    with pytest.raises(CaptureError, match="nobody sampled it"):
        Span(kind, np.array([1]), np.array([-1.0]), np.array([0]))
    with pytest.raises(CaptureError, match="nobody sampled it"):
        Span(kind, np.array([1]), versions=np.array([0]))


@pytest.mark.parametrize("kind", SAMPLED)
def test_tokens_that_were_sampled_need_logprobs_and_versions(kind: SpanKind) -> None:
    with pytest.raises(CaptureError, match="needs log-probs and versions for its 2 tokens"):
        Span(kind, np.array([1, 2]), np.array([-1.0, -1.0]))
    with pytest.raises(CaptureError, match="needs log-probs and versions for its 2 tokens"):
        Span(kind, np.array([1, 2]))


@pytest.mark.parametrize(("logprob", "ok"), [(-1e30, True), (0.0, True), (9e-5, True), (2e-4, False), (np.nan, False),
                                             (-np.inf, False), (np.inf, False)])  # fmt: skip
def test_a_logprob_is_finite_and_at_most_zero_up_to_rounding(logprob: float, ok: bool) -> None:
    if ok:
        assert Span(SpanKind.ACTION, np.array([1]), np.array([logprob]), np.array([0])).logprobs == np.float32(logprob)
    else:
        with pytest.raises(CaptureError, match="positive or not finite"):
            Span(SpanKind.ACTION, np.array([1]), np.array([logprob]), np.array([0]))


@pytest.mark.parametrize(("versions", "ok"), [([3, 3], True), ([3, 4], True), ([4, 3], False), ([-1, 0], False)])
def test_versions_of_a_sampled_run_never_go_backwards(versions: list[int], ok: bool) -> None:
    """P3: weights may change in the middle of a generation, only forwards."""
    if ok:
        assert Span(SpanKind.ACTION, np.array([1, 2]), np.zeros(2), np.array(versions)).versions is not None
    else:
        with pytest.raises(CaptureError, match="negative or go backwards"):
            Span(SpanKind.ACTION, np.array([1, 2]), np.zeros(2), np.array(versions))


@pytest.mark.parametrize("ids", [[1, 2**31], [2**40], [0.5], [[1, 2]], 7, [float("nan")], [-1], []])
def test_ids_are_one_row_of_non_negative_whole_int32_numbers(ids: object) -> None:
    """Numpy would wrap, truncate or flatten all but the last two without a word."""
    with pytest.raises(CaptureError):
        Span(SpanKind.PROMPT, np.array(ids))


@given(spans())
def test_columns_are_read_only_copies_of_the_right_type(span: Span) -> None:
    columns = [(span.token_ids, np.int32)]
    if span.logprobs is not None and span.versions is not None:
        columns += [(span.logprobs, np.float32), (span.versions, np.int32)]
    for column, dtype in columns:
        assert column.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        span.kind = SpanKind.ACTION  # type: ignore[misc]


def test_a_span_does_not_follow_the_array_it_was_made_from() -> None:
    ids = np.array([1, 2], np.int32)
    span = Span(SpanKind.PROMPT, ids)
    ids[0] = 9
    assert span.token_ids.tolist() == [1, 2]


@given(SEGMENTS)
def test_masks_and_columns_of_a_segment_follow_from_its_spans(segment: Segment) -> None:
    """The mask is derived: True exactly on ACTION and SUMMARY tokens, so it cannot disagree with the ids."""
    owner = [span.kind for span in segment.spans for _ in range(len(span))]
    mask = segment.sampled_mask
    assert mask.tolist() == [kind in SAMPLED for kind in owner]
    assert len(segment) == len(segment.token_ids) == len(segment.logprobs) == len(segment.versions) == len(owner)
    assert segment.num_sampled == int(mask.sum())
    assert (segment.logprobs[~mask] == 0).all()
    assert (segment.versions[~mask] == NO_VERSION).all()
    assert (segment.versions[mask] >= 0).all()


def test_a_segment_by_hand() -> None:
    segment = Segment(
        (prompt([5, 6]), action([7], version=3), Span(SpanKind.OBSERVATION, np.array([8])), action([9], 4))
    )
    assert segment.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert segment.sampled_mask.tolist() == [False, False, True, False, True]
    assert segment.logprobs.tolist() == [0, 0, -0.5, 0, -0.5]
    assert segment.versions.tolist() == [-1, -1, 3, -1, 4]
    assert (segment.num_turns, segment.num_sampled) == (2, 2)


def test_a_segment_starts_with_what_the_engine_saw() -> None:
    with pytest.raises(CaptureError, match="starts with a sampled span"):
        Segment((action([1]),))
    with pytest.raises(CaptureError, match="no spans"):
        Segment(())


@given(TRAJECTORIES)
def test_a_trajectory_adds_up_its_segments(trajectory: Trajectory) -> None:
    """T7: what can be trained is what was sampled, over all segments."""
    assert trajectory.num_sampled == sum(int(segment.sampled_mask.sum()) for segment in trajectory.segments)
    sampled = [v for segment in trajectory.segments for v in segment.versions[segment.sampled_mask].tolist()]
    assert trajectory.oldest_version == (min(sampled) if sampled else NO_VERSION)


def test_only_a_failed_trajectory_may_be_empty() -> None:
    broken = Outcome(Stop.FAILED, failure=Failure("sandbox", "OSError", "no box"))
    assert Trajectory("t1", "task", "env-v0", (), broken).num_sampled == 0
    with pytest.raises(CaptureError, match="t1 has no segments, yet it did not fail"):
        Trajectory("t1", "task", "env-v0", (), Outcome(Stop.DONE))


def test_a_failed_outcome_has_no_total_rather_than_a_total_of_zero() -> None:
    """O5: an environment failure is never a reward of 0."""
    failed = Outcome(Stop.FAILED, failure=Failure("scorer", "ValueError", "no verdict"))
    assert not failed.is_valid
    with pytest.raises(GlmgymError, match=r"no reward .scorer: no verdict"):
        failed.total()
    with pytest.raises(GlmgymError, match="never graded"):
        Outcome(Stop.DONE).total()


def test_the_total_is_weighted() -> None:
    assert Outcome(Stop.DONE, (Reward("tests", 1.0, weight=0.75), Reward("style", -0.5, weight=0.5))).total() == 0.5


@pytest.mark.parametrize("stop", list(Stop))
def test_a_failure_is_present_exactly_when_the_stop_says_so(stop: Stop) -> None:
    failure = Failure("env", "KeyError", "x")
    right, wrong = (failure, None) if stop is Stop.FAILED else (None, failure)
    assert Outcome(stop, failure=right).is_valid is (stop is not Stop.FAILED)
    with pytest.raises(ValueError, match="contradict"):
        Outcome(stop, failure=wrong)


def test_a_failed_outcome_refuses_rewards() -> None:
    with pytest.raises(ValueError, match="has no rewards"):
        Outcome(Stop.FAILED, (Reward("r", 0.0),), Failure("env", "KeyError", "x"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_reward_is_finite(value: float) -> None:
    """E3: NaN is a scorer that could not tell, not a number."""
    with pytest.raises(ValueError, match="'r' is not finite"):
        Reward("r", value)
    with pytest.raises(ValueError, match="'r' is not finite"):
        Reward("r", 1.0, weight=value)


@pytest.mark.parametrize(("value", "plain"), [(np.float32(0.5), 0.5), (True, 1.0), (np.int64(2), 2.0)])
def test_a_reward_holds_plain_numbers(value: float, plain: float) -> None:
    assert type(Reward("r", value).value) is float
    assert Reward("r", value).value == plain
    with pytest.raises(TypeError):
        Reward("r", "0.5")  # type: ignore[arg-type]


def test_a_failure_names_its_origin_and_cause() -> None:
    with pytest.raises(SandboxFailure) as caught, boundary(SandboxFailure, "open box"):
        raise FileNotFoundError("bwrap")
    assert Failure.of(caught.value) == Failure(
        "sandbox", "FileNotFoundError", "open box: FileNotFoundError: bwrap", retryable=True
    )


@pytest.mark.parametrize(
    ("stop", "truncated"),
    [("done", False), ("failed", False), ("max_turns", True), ("context_full", True), ("budget", True)],
)
def test_only_limits_truncate(stop: str, truncated: bool) -> None:
    assert Stop(stop).is_truncated is truncated


@given(st.sampled_from(SegmentEnd))
def test_ends_are_their_names(end: SegmentEnd) -> None:
    assert SegmentEnd(str(end)) is end

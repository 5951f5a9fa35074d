"""Hypothesis strategies for whole trajectories, shared by the tests of the vocabulary, the store and its codec."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from glmgym.trajectory import (
    Failure,
    Outcome,
    Provenance,
    Reward,
    Segment,
    SegmentEnd,
    Span,
    SpanKind,
    Stop,
    Trajectory,
)

LARGEST = 2**31 - 1
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
# Lone surrogates are what undecodable output turns into; they must survive too.
TEXT = st.text(st.characters(), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
JSON = st.dictionaries(TEXT, NUMBERS | st.integers() | st.booleans() | TEXT | st.none(), max_size=3)


@st.composite
def spans(draw: st.DrawFn, kinds: tuple[SpanKind, ...] = tuple(SpanKind)) -> Span:
    kind = draw(st.sampled_from(kinds))
    ids = draw(st.lists(st.integers(0, LARGEST), min_size=1, max_size=6))
    if not kind.is_sampled:
        return Span(kind, np.array(ids))
    logprobs = draw(st.lists(st.floats(-(2.0**100), 0.0, width=32), min_size=len(ids), max_size=len(ids)))
    versions = sorted(draw(st.lists(st.integers(0, LARGEST), min_size=len(ids), max_size=len(ids))))
    return Span(kind, np.array(ids), np.array(logprobs), np.array(versions))


UNSAMPLED = tuple(kind for kind in SpanKind if not kind.is_sampled)
SEGMENTS = st.builds(
    lambda first, rest, end: Segment((first, *rest), end),
    spans(UNSAMPLED),
    st.lists(spans(), max_size=4),
    st.sampled_from(SegmentEnd),
)
REWARDS = st.builds(Reward, NAMES, NUMBERS, NUMBERS, TEXT, TEXT, TEXT)
FAILURES = st.builds(Failure, TEXT, TEXT, TEXT, st.booleans())
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from([stop for stop in Stop if stop is not Stop.FAILED]),
    st.lists(REWARDS, max_size=3).map(tuple),
) | st.builds(lambda failure: Outcome(Stop.FAILED, failure=failure), FAILURES)
PROVENANCES = st.builds(
    Provenance, TEXT, TEXT, TEXT, JSON, TEXT, TEXT, TEXT, TEXT, st.dictionaries(TEXT, NUMBERS, max_size=3)
)
TRAJECTORIES = st.builds(
    Trajectory,
    id=NAMES,
    task_id=NAMES,
    env_id=NAMES,
    segments=st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple),
    outcome=OUTCOMES,
    provenance=PROVENANCES,
    group_id=NAMES,
    family=NAMES,
    domain=TEXT,
    final_answer=TEXT,
)

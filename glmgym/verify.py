"""Offline re-check of what a run stored: was a record altered, could it have happened, is any lost or used twice.

Owned here: which laws a finished record must obey beyond what its dataclasses enforce. Needs no engine and no network;
only token ids need the run's tokenizer, and are left unchecked, with a note, when there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmgym.chat import Mark, Tokenizer, load_tokenizer
from glmgym.chat.wire import STOP_MARKS
from glmgym.errors import ConfigError, StoreError
from glmgym.store import Change, State, Summary, TrajectoryStore
from glmgym.store.codec import summary_columns
from glmgym.store.states import ALLOWED
from glmgym.trajectory import Segment, SegmentEnd, Span, SpanKind, Trajectory

_WORDS = {SpanKind.ACTION: "turn", SpanKind.SUMMARY: "summary"}
_ROLES = (Mark.SYSTEM, Mark.USER, Mark.ASSISTANT, Mark.OBSERVATION)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at and what was wrong; each problem is a sentence that names its trajectory."""

    num_records: int
    num_tokens: int
    num_sampled: int
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what could not be checked

    @property
    def summary(self) -> str:
        found = f"{len(self.problems)} problems" if self.problems else "no problem"
        text = f"{self.num_records} records, {self.num_tokens} tokens, {self.num_sampled} of them sampled: {found}"
        return "; ".join((text, *self.notes))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What must be known of a tokenizer to check ids: its size, and the ids that end and begin a turn or a thought."""

    size: int
    stops: frozenset[int]
    roles: frozenset[int]
    sha256: str
    end_think: int


def verify_run(run: Path) -> VerifyReport:
    """Check the store of a run directory, record by record.

    Raises:
        ConfigError: the directory holds no store.
        StoreError: the store cannot be opened at all.
    """
    path = run / "trajectories" / "store.sqlite"
    if not path.is_file():
        raise ConfigError(f"{run} holds no trajectories (looked for {path}); give the directory of a run")
    vocabulary, notes = _find_vocabulary(run)
    with TrajectoryStore.open(path, read_only=True) as store:
        return verify_store(store, vocabulary, notes=notes)


def verify_store(store: TrajectoryStore, vocabulary: Vocabulary | None, *, notes: tuple[str, ...] = ()) -> VerifyReport:
    """Check an open store, as it is at one moment: the file, the law, each life story, each record."""
    with store.snapshot():
        return _verify(store, vocabulary, notes)


def _verify(store: TrajectoryStore, vocabulary: Vocabulary | None, notes: tuple[str, ...]) -> VerifyReport:
    problems = [f"the store file is damaged: {line}" for line in store.damage()]
    counts = store.counts()
    if not counts.holds_law():
        problems.append(f"the conservation law is broken: {counts}")
    recorded = set(store.recorded())
    num_tokens = num_sampled = num_left_out = 0
    for row in store.summaries():
        about = list(_life_problems(row, store.history(row.id), has_record=row.id in recorded))
        if row.id in recorded:
            try:
                trajectory = store.get(row.id)
            except StoreError as error:
                problems.append(str(error))
            else:
                about += [*_row_problems(row, trajectory), *trajectory_problems(trajectory, vocabulary)]
                num_tokens += sum(len(segment) for segment in trajectory.segments)
                num_sampled += trajectory.num_sampled
                num_left_out += trajectory.num_sampled - row.num_trained if row.num_trained is not None else 0
        problems += [f"trajectory {row.id}: {text}" for text in about]
    if num_left_out and not problems:
        notes = (*notes, f"{num_left_out} sampled tokens were left out of the loss by the algorithm")
    return VerifyReport(len(recorded), num_tokens, num_sampled, tuple(problems), notes)


def trajectory_problems(trajectory: Trajectory, vocabulary: Vocabulary | None) -> Iterator[str]:
    """What one record says that cannot have happened."""
    last = len(trajectory.segments) - 1
    versions = [span.versions for segment in trajectory.segments for span in segment.spans if span.versions is not None]
    if versions and bool((np.diff(np.concatenate(versions)) < 0).any()):
        yield "policy versions go backwards from one turn to a later one"
    if vocabulary is not None and trajectory.provenance.tokenizer_sha256 not in ("", vocabulary.sha256):
        yield "it was recorded with another tokenizer than the run's"
    for i, segment in enumerate(trajectory.segments):
        where = f"segment {i}"
        if segment.spans[0].kind is not SpanKind.PROMPT:
            yield f"{where} starts with {segment.spans[0].kind} tokens instead of a prompt"
        if (segment.ended_by is SegmentEnd.END) != (i == last):
            yield f"{where} of {last + 1} ended by {segment.ended_by}"
        yield from (f"{where}: {text}" for text in _summary_problems(segment))
        before = trajectory.segments[i - 1] if i else None
        yield from (f"{where}: {text}" for text in _prompt_problems(segment, before))
        yield from (f"{where}: {text}" for text in _copy_problems(segment, before, vocabulary))
        if vocabulary is not None:
            yield from (f"{where}: {text}" for text in _token_problems(segment, vocabulary))


def _token_problems(segment: Segment, vocabulary: Vocabulary) -> Iterator[str]:
    largest = int(segment.token_ids.max())
    if largest >= vocabulary.size:
        at = int(segment.token_ids.argmax())
        yield f"token id {largest} at position {at} is outside the vocabulary of {vocabulary.size}"
    for i, span in enumerate(segment.spans):
        if span.kind.is_sampled and bool(np.isin(span.token_ids[:-1], list(vocabulary.stops)).any()):
            yield f"span {i}: the {_WORDS[span.kind]} goes on after its stop token"
    for i, (span, after) in enumerate(pairwise(segment.spans)):
        if span.kind is SpanKind.ACTION and after.kind is SpanKind.OBSERVATION:
            yield from (f"span {i}: {text}" for text in _turn_problems(span, after, vocabulary))


def _turn_problems(action: Span, observation: Span, vocabulary: Vocabulary) -> Iterator[str]:
    """GLM has no end-of-turn token: the next role marker ends a turn, sampled or inserted, and stands there once.

    A turn that was cut in the middle of a segment shows itself by this: the observation brings the marker.
    """
    ended, opening = int(action.token_ids[-1]), int(observation.token_ids[0])
    if ended not in vocabulary.stops and opening not in vocabulary.roles:
        yield "a turn without a stop token is followed by an observation without a role marker"
    if ended in vocabulary.stops and ended == opening:
        yield f"the role marker {ended} was sampled, and then rendered a second time"


def _summary_problems(segment: Segment) -> Iterator[str]:
    """A summary is asked for after an observation, and ends its segment. One of no tokens leaves no span."""
    kinds = [span.kind for span in segment.spans]
    for i, (kind, after) in enumerate(pairwise(kinds)):
        if kind is SpanKind.SUMMARY:
            yield f"span {i}: a summary is followed by {after} tokens"
        if after is SpanKind.SUMMARY and kind is not SpanKind.OBSERVATION:
            yield f"span {i + 1}: a summary follows {kind} tokens instead of an observation"
    if segment.ended_by is SegmentEnd.COMPACTED and kinds[-1] not in (SpanKind.SUMMARY, SpanKind.OBSERVATION):
        yield f"it was compacted after {kinds[-1]} tokens, not after a summary"


def _prompt_problems(segment: Segment, before: Segment | None) -> Iterator[str]:
    """A fork goes on from the same prompt; the ``<think>`` at its end comes and goes with the reasoning after it."""
    if before is None or before.ended_by is not SegmentEnd.FORKED:
        return
    one, two = before.spans[0].token_ids, segment.spans[0].token_ids
    n = min(len(one), len(two))
    if not np.array_equal(one[:n], two[:n]) or max(len(one), len(two)) > n + 1:
        yield "it forked, but does not start with the prompt of the segment before"


def _copy_problems(segment: Segment, before: Segment | None, vocabulary: Vocabulary | None) -> Iterator[str]:
    """Carried tokens are copies: a run of one span of the segment before, or, after a fork, the same span thinned out.

    A fork removes reasoning and closes one that was cut, so there ``</think>`` may be new. What it folds is no copy.
    """
    carried = [(i, span) for i, span in enumerate(segment.spans) if span.kind is SpanKind.CARRIED]
    for i, span in carried:
        if before is None:
            yield f"span {i} is carried, but no segment came before"
        elif before.ended_by is SegmentEnd.COMPACTED:
            if not any(_holds(source.token_ids, span.token_ids) for source in before.spans):
                yield f"span {i} is carried, but no span before the compaction holds its {len(span)} ids in a row"
        elif vocabulary is not None:
            source = iter(before.spans[i].token_ids.tolist() if i < len(before.spans) else ())
            if not all(id == vocabulary.end_think or id in source for id in span.token_ids.tolist()):
                yield f"span {i} is carried, but span {i} before the fork does not hold its {len(span)} ids in order"


def _holds(ids: NDArray[np.int32], run: NDArray[np.int32]) -> bool:
    """True when ``run`` stands somewhere in ``ids``."""
    text, part = ids.tobytes(), run.tobytes()
    at = text.find(part)
    while at > 0 and at % ids.itemsize:  # bytes that straddle two ids
        at = text.find(part, at + 1)
    return at >= 0


def _row_problems(row: Summary, trajectory: Trajectory) -> Iterator[str]:
    for name, value in summary_columns(trajectory).items():
        if getattr(row, name) != value:
            yield f"the row says {name} = {getattr(row, name)!r}, the record {value!r}"
    for name in ("id", "task_id", "env_id", "group_id"):
        if getattr(row, name) != getattr(trajectory, name):
            yield f"the row says {name} = {getattr(row, name)!r}, the record {getattr(trajectory, name)!r}"
    if row.consumed_version is not None and row.newest_version > row.consumed_version:
        yield f"version {row.newest_version} sampled it, yet it was consumed under version {row.consumed_version}"
    spans = [span for segment in trajectory.segments for span in segment.spans]
    summaries = sum(len(span) for span in spans if span.kind is SpanKind.SUMMARY)
    # An algorithm may leave out a whole trajectory, or all of its summaries; nothing else.
    if row.num_trained not in (None, 0, trajectory.num_sampled - summaries, trajectory.num_sampled):
        yield f"{row.num_trained} tokens were trained, but {trajectory.num_sampled} were sampled"


def _life_problems(row: Summary, history: list[Change], *, has_record: bool) -> Iterator[str]:
    states = [change.state for change in history]
    if not states or states[0] is not State.ISSUED or states[-1] is not row.state:
        yield f"it is {row.state}, but its history says {' -> '.join(states) or 'nothing'}"
    if states.count(State.CONSUMED) > 1:
        yield f"it was consumed {states.count(State.CONSUMED)} times"
    for before, after in pairwise(states):
        lost = before is State.CONSUMED and after is State.DISCARDED
        if after not in ALLOWED[before] and not lost:
            yield f"it went from {before} to {after}"
    if row.state in (State.READY, State.TRAINING, State.CONSUMED) and not has_record:
        yield f"it is {row.state}, but its record is missing"
    if row.state is State.DISCARDED and not row.reason:
        yield "it was discarded without a reason"


def _find_vocabulary(run: Path) -> tuple[Vocabulary | None, tuple[str, ...]]:
    """The vocabulary of the run's newest tokenizer; without one, None and a note that says so."""
    found = sorted(run.glob("checkpoints/step-*/**/tokenizer.json")) or sorted(run.glob("**/tokenizer.json"))
    if not found:
        return None, ("token ids unchecked: the run holds no tokenizer.json",)
    try:
        tokenizer = load_tokenizer(found[-1].parent)
        return _vocabulary(tokenizer, found[-1].with_name("config.json")), ()
    except ConfigError as error:
        return None, (f"token ids unchecked: {error}",)


def _vocabulary(tokenizer: Tokenizer, config: Path) -> Vocabulary:
    size = tokenizer.vocab_size
    if config.is_file():
        # An embedding may have more rows than the tokenizer has ids, and a policy may sample them.
        size = max(size, int(json.loads(config.read_text(encoding="utf-8")).get("vocab_size", 0)))
    return Vocabulary(
        size,
        frozenset(tokenizer.id_of(mark) for mark in STOP_MARKS),
        frozenset(tokenizer.id_of(mark) for mark in _ROLES),
        tokenizer.sha256,
        tokenizer.id_of(Mark.END_THINK),
    )

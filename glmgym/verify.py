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

from glmgym.chat import Mark, Tokenizer, load_tokenizer
from glmgym.chat.wire import STOP_MARKS
from glmgym.errors import ConfigError, StoreError
from glmgym.store import Change, State, Summary, TrajectoryStore
from glmgym.store.codec import summary_columns
from glmgym.store.states import ALLOWED
from glmgym.trajectory import Segment, SegmentEnd, Span, SpanKind, Trajectory

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
    """What must be known of a tokenizer to check ids: its size, and the ids that end and begin a turn."""

    size: int
    stops: frozenset[int]
    roles: frozenset[int]
    sha256: str


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
    num_tokens = num_sampled = 0
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
        problems += [f"trajectory {row.id}: {text}" for text in about]
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
        if vocabulary is not None:
            yield from (f"{where}: {text}" for text in _token_problems(segment, vocabulary))


def _token_problems(segment: Segment, vocabulary: Vocabulary) -> Iterator[str]:
    largest = int(segment.token_ids.max())
    if largest >= vocabulary.size:
        at = int(segment.token_ids.argmax())
        yield f"token id {largest} at position {at} is outside the vocabulary of {vocabulary.size}"
    for i, span in enumerate(segment.spans):
        if span.kind is SpanKind.ACTION and bool(np.isin(span.token_ids[:-1], list(vocabulary.stops)).any()):
            yield f"span {i}: the turn goes on after its stop token"
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


def _row_problems(row: Summary, trajectory: Trajectory) -> Iterator[str]:
    for name, value in summary_columns(trajectory).items():
        if getattr(row, name) != value:
            yield f"the row says {name} = {getattr(row, name)!r}, the record {value!r}"
    for name in ("id", "task_id", "env_id", "group_id"):
        if getattr(row, name) != getattr(trajectory, name):
            yield f"the row says {name} = {getattr(row, name)!r}, the record {getattr(trajectory, name)!r}"
    if row.consumed_version is not None and row.newest_version > row.consumed_version:
        yield f"version {row.newest_version} sampled it, yet it was consumed under version {row.consumed_version}"
    if row.num_trained is not None and row.num_trained != trajectory.num_sampled:
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
    )

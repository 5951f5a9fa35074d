"""An evaluation on disk: its terms, its attempts as they finish, and how a killed one goes on.

Owned here: the files of the directory and the rules of resuming. ``terms.json`` is written before the first attempt:
what a score means (environment and its code, tasks, policy, sampling, budget, seed). ``attempts.jsonl`` gets a line per
attempt, flushed to the disk before the next thing happens; a line that a kill cut short is dropped. An attempt that
failed is no result: it is made again, and a later line of its id takes its place. Trajectories are stored before their
attempt's line, so a stored one that no line names was cut off by a kill and is discarded, as those of failures are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glmgym.chat import Tokenizer
from glmgym.env import Split, Task
from glmgym.errors import ConfigError, StoreError
from glmgym.evaluation.attempt import Attempt, attempt_key, code_version, content_digest, task_digest
from glmgym.evaluation.player import Player
from glmgym.folding import Management
from glmgym.registry import EnvSpec
from glmgym.settings import parse_settings
from glmgym.store import State, TrajectoryStore
from glmgym.trajectory import Trajectory

TERMS, ATTEMPTS, SUMMARY, PAGE = "terms.json", "attempts.jsonl", "summary.json", "report.html"
STORE = Path("trajectories") / "store.sqlite"


@dataclass(frozen=True, slots=True)
class EvalTerms:
    """What an evaluation is of. Two are comparable when all but the policy, the seed and the attempts agree."""

    environment: str
    code: str  # glmgym's version and a digest of the environment's sources
    split: Split
    tasks: int
    tasks_sha256: str  # of the content of every task
    attempts: int  # per task
    seed: int
    policy: str
    policy_sha256: str
    playing: Mapping[str, Any]  # budget, sampling, compaction, management, context length, sandbox, retries
    max_turns: int  # of the environment

    @property
    def keyed(self) -> dict[str, Any]:
        """What one attempt depends on: neither how many tasks and attempts there are, nor what the policy is called."""
        apart = ("tasks", "tasks_sha256", "attempts", "policy", "playing.retries")
        return {name: value for name, value in flat(asdict(self)).items() if name not in apart}


def terms_of(
    spec: EnvSpec,
    player: Player,
    tasks: Sequence[Task],
    *,
    split: Split,
    attempts: int,
    seed: int,
    playing: Mapping[str, Any],
) -> EvalTerms:
    """The terms of an evaluation that is about to begin."""
    return EvalTerms(
        environment=spec.id,
        code=code_version(spec),
        split=split,
        tasks=len(tasks),
        tasks_sha256=content_digest([task_digest(task) for task in tasks]),
        attempts=attempts,
        seed=seed,
        policy=player.name,
        policy_sha256=player.digest,
        playing=playing,
        max_turns=spec.max_turns,
    )


def read_terms_file(directory: Path) -> dict[str, Any]:
    """The terms of an evaluation on disk.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    path = directory / TERMS
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{directory} holds no evaluation (looked for {path}): {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not the terms of an evaluation")
    return found


def management_of(terms: Mapping[str, Any]) -> Management | None:
    """How the history was managed in an evaluation of such terms; None if the policy was shown all."""
    settings = terms["playing"].get("management")
    return None if settings is None else parse_settings(Management, settings, where=f"{TERMS} management")


def read_attempts(directory: Path) -> list[Attempt]:
    """Every attempt on disk, a failed one that was made again left out, and so is a last line that was cut short.

    Raises:
        ConfigError: the directory holds no evaluation.
        StoreError: a line is not an attempt, or two lines are of the same one and the first did not fail.
    """
    read_terms_file(directory)
    path = directory / ATTEMPTS
    latest: dict[str, Attempt] = {}
    for attempt in _whole_lines(path) if path.exists() else ():
        before = latest.get(attempt.id)
        if before is not None and before.outcome.is_valid:
            raise StoreError(f"{path} holds attempt {attempt.id} twice")
        latest[attempt.id] = attempt
    return list(latest.values())


def differences(first: Mapping[str, Any], second: Mapping[str, Any], *, apart: Sequence[str] = ()) -> list[str]:
    """What two terms disagree in, as ``"name: ONE and OTHER"``; names in ``apart`` are left out."""
    one, two = flat(first), flat(second)
    return [
        f"{name}: {one.get(name)!r} and {two.get(name)!r}"
        for name in dict.fromkeys([*one, *two])
        if one.get(name) != two.get(name) and name not in apart
    ]


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables under dotted names, so that each value has one."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found.update(flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return found


class EvaluationDirectory:
    """Open for writing; made by ``open_directory``. Attempts are added from one event loop, one at a time."""

    def __init__(self, path: Path, terms: EvalTerms, attempts: list[Attempt], store: TrajectoryStore | None) -> None:
        self.path = path
        self.terms = terms
        self.attempts = attempts
        self._store = store
        self._failed = {each.id: i for i, each in enumerate(attempts) if not each.outcome.is_valid}

    @property
    def done(self) -> set[str]:
        """Keys of the attempts that need not be played again: those that did not fail."""
        return {attempt.key for attempt in self.attempts if attempt.outcome.is_valid}

    def add(self, attempt: Attempt, trajectory: Trajectory | None) -> None:
        """Keep an attempt that just ended; one that failed earlier under its id becomes one of its replaced tries.

        Blocks on the disk: call it through ``asyncio.to_thread``.
        """
        place = self._failed.pop(attempt.id, None)
        old = None if place is None else self.attempts[place]
        if old is not None and old.outcome.failure is not None:
            attempt = replace(attempt, replaced=(*old.replaced, old.outcome.failure, *attempt.replaced))
        if trajectory is not None and self._store is not None:
            attempt = replace(attempt, trajectory_id=self._store.add(trajectory))
        with (self.path / ATTEMPTS).open("a", encoding="ascii") as file:
            file.write(attempt.to_line() + "\n")
            file.flush()
            os.fsync(file.fileno())
        if place is None:
            self.attempts.append(attempt)
        else:
            self.attempts[place] = attempt


@contextmanager
def open_directory(
    path: Path, terms: EvalTerms, tasks: Sequence[Task], *, resume: bool, tokenizer: Tokenizer | None
) -> Iterator[EvaluationDirectory]:
    """A directory to write an evaluation to, or one to go on with.

    Args:
        tasks: those of the evaluation.
        tokenizer: of a policy that samples tokens; its trajectories are then stored too.

    Raises:
        ConfigError: the directory holds a run, or an evaluation that is not to be resumed or of other terms.
        StoreError: what it holds cannot be read.
    """
    exists = (path / TERMS).exists()
    if (exists and not resume) or (not exists and (path / "trajectories").exists()):
        hint = "go on with it by --resume, or " if exists else ""
        raise ConfigError(f"{path} already holds a run or an evaluation; {hint}give another --out")
    attempts: list[Attempt] = []
    if exists:
        _refuse_other_terms(path, terms)
        _cut_torn_line(path / ATTEMPTS)
        attempts = read_attempts(path)
        _refuse_other_keys(path, attempts, terms, tasks)
        _drop_replaced_lines(path / ATTEMPTS, attempts)
    if tokenizer is None:
        path.mkdir(parents=True, exist_ok=True)
        _write(path / TERMS, asdict(terms))
        yield (directory := EvaluationDirectory(path, terms, attempts, None))
        _drop_replaced_lines(path / ATTEMPTS, directory.attempts)
        return
    (path / "trajectories").mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    with TrajectoryStore.open(path / STORE) as store:
        named = {attempt.trajectory_id for attempt in attempts}
        if torn := [id for id in store.recorded(State.READY) if id not in named]:
            store.discard(torn, "interrupted")
        _write(path / TERMS, asdict(terms))
        yield (directory := EvaluationDirectory(path, terms, attempts, store))
        _drop_replaced_lines(path / ATTEMPTS, directory.attempts)


def in_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """By task and number, whatever order they ended in, so that every table of the same attempts is the same."""
    return sorted(attempts, key=lambda attempt: (_natural(attempt.task_id), attempt.number))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """``summary.json``, appearing at once."""
    _write(path / SUMMARY, summary)


def _refuse_other_terms(path: Path, terms: EvalTerms) -> None:
    found = differences(read_terms_file(path), json.loads(json.dumps(asdict(terms))))
    if found:
        raise ConfigError(
            f"{path} holds an evaluation of other terms and cannot be resumed: {'; '.join(found)} (there and now); "
            "give another --out"
        )


def _refuse_other_keys(path: Path, attempts: Sequence[Attempt], terms: EvalTerms, tasks: Sequence[Task]) -> None:
    keyed = terms.keyed
    expected = {f"{task.id}/{k}": attempt_key(keyed, task, k) for task in tasks for k in range(terms.attempts)}
    for attempt in attempts:
        if expected.get(attempt.id) != attempt.key:
            raise StoreError(f"{path / ATTEMPTS}: attempt {attempt.id} is not of this evaluation: its key differs")


def _whole_lines(path: Path) -> Iterator[Attempt]:
    with path.open(encoding="ascii") as file:
        for line in file:
            if line.endswith("\n"):
                yield Attempt.from_line(line)


def _cut_torn_line(path: Path) -> None:
    """What a kill left of a line goes, or the next one would be glued to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _drop_replaced_lines(path: Path, attempts: Sequence[Attempt]) -> None:
    """Leave a line per attempt, at once, for whoever reads the file without these rules."""
    if not path.exists() or path.read_bytes().count(b"\n") == len(attempts):
        return
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="ascii") as file:
        file.writelines(attempt.to_line() + "\n" for attempt in attempts)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts ``task/10`` after ``task/9``."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", text) if part]

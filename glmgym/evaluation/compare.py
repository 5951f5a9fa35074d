"""Two evaluations of the same tasks, task by task. Owned here: when two may be compared at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.errors import ConfigError
from glmgym.evaluation.attempt import Attempt
from glmgym.evaluation.directory import differences, in_order, management_of, read_attempts, read_terms_file
from glmgym.evaluation.evaluate import outcomes_by_task, score
from glmgym.evaluation.intervals import Estimate, PairedDifference, paired
from glmgym.folding import Management

_MANAGEMENT = ("playing.management", *(f"playing.management.{name}" for name in Management.model_fields))
_MAY_DIFFER = ("policy", "policy_sha256", "seed", "attempts", "playing.retries", *_MANAGEMENT)


@dataclass(frozen=True, slots=True)
class Row:
    """One family, or all: each side's own score, and the difference on the tasks that both have."""

    name: str
    first: Estimate
    second: Estimate
    pair: PairedDifference


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left_out``: tasks for which one side or both have nothing but failures."""

    policies: tuple[str, str]
    environment: str
    families: tuple[Row, ...]
    overall: Row
    left_out: int


def compare(first: Path, second: Path) -> Comparison:
    """Compare two evaluation directories; the difference is second minus first.

    Raises:
        ConfigError: one holds no evaluation, one has not come to its end, or they are of different tasks or terms.
        StoreError: an attempt cannot be read.
    """
    terms = [read_terms_file(path) for path in (first, second)]
    if found := differences(*terms, apart=_MAY_DIFFER):
        raise ConfigError(f"{first} and {second} cannot be compared; they differ in {'; '.join(found)}")
    sides = [in_order(read_attempts(path)) for path in (first, second)]
    for path, side, term in zip((first, second), sides, terms, strict=True):
        if len(side) < (wanted := term["tasks"] * term["attempts"]):
            raise ConfigError(f"{path} has {len(side)} of {wanted} attempts; finish it with --resume first")
    valid = [[attempt for attempt in side if attempt.outcome.is_valid] for side in sides]
    families = sorted({attempt.family for side in valid for attempt in side})
    rows = [_row(name, *([a for a in side if a.family == name] for side in valid)) for name in families]
    overall = _row("all", *valid)
    policies = (_policy(terms[0]), _policy(terms[1]))
    left_out = int(terms[0]["tasks"]) - overall.pair.difference.tasks
    return Comparison(policies, str(terms[0]["environment"]), tuple(rows), overall, left_out)


def _policy(terms: Mapping[str, Any]) -> str:
    """Its name, and how its context was managed: that belongs to the use of a policy, not to the task."""
    management = management_of(terms)
    return str(terms["policy"]) if management is None else f"{terms['policy']}, {management.text}"


def _row(name: str, first: Sequence[Attempt], second: Sequence[Attempt]) -> Row:
    one, two = outcomes_by_task(first), outcomes_by_task(second)
    both = [task for task in one if task in two]
    return Row(name, score(first), score(second), paired([one[t] for t in both], [two[t] for t in both]))

"""What an experiment declares before it runs: its claims, its arms, what would decide them. And the record of an arm.

Every arm runs on the same seeds; a claim is a number per seed, computed from the records of that seed's arms, and it
holds if the 95 % interval of that number over the seeds lies above the claim's border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from glmgym.errors import GlmgymError
from glmgym.settings import Settings
from glmgym_trainers.proving.cache import Cache
from glmgym_trainers.proving.statistics import Interval, Verdict, interval, verdict


class Invalid(GlmgymError):
    """A run broke a condition of its own experiment, so that its numbers would mean something else."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one arm did on one seed. Absent metrics are those that the arm does not have.

    Raises:
        Invalid: a metric is not a finite number.
    """

    metrics: Mapping[str, float]
    curve: Sequence[Mapping[str, float]] = ()  # points to plot, by column name
    cpu_s: float = 0.0  # process time; wall time on a shared core says nothing

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if not math.isfinite(value):
                raise Invalid(f"the metric {name!r} is {value}: too little was played, or nothing varied in it")


Records = Mapping[str, Record]  # of one seed, by arm


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    does: str  # what sets it apart


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, and the number per seed that has to lie above ``above``. A gate must hold for the product to pass."""

    says: str
    measure: str  # what the number is, in words
    value: Callable[[Records], float]
    above: float = 0.0
    gate: bool = False

    def judge(self, seeds: Sequence[Records]) -> tuple[Interval, Verdict]:
        found = interval([self.value(records) for records in seeds])
        return found, verdict(found, above=self.above)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: columns of the curves, averaged over seeds, a line for each arm that has both."""

    x: str
    y: str
    x_label: str
    y_label: str
    x_max: float | None = None  # where the axis ends, if one arm would stretch it


Run = Callable[[Any, str, int, Cache], Record]  # settings, arm, seed, cache


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    claim: str  # one sentence
    setting: str  # a paragraph or two: the task, the training, what is held equal
    tried: Sequence[str]  # what was tried on the way, so that nobody takes the result for a first attempt
    settings: type[Settings]
    quick: Mapping[str, Any]  # settings of ``--quick``
    arms: Sequence[Arm]
    claims: Sequence[Claim]
    metrics: Mapping[str, str]  # columns of the table: metric -> heading
    panels: Sequence[Panel]
    run: Run
    prepare: Callable[[Any, Cache], None]  # fills the cache with what all seeds share
    modules: Sequence[ModuleType] = field(default_factory=tuple)  # whose source the results depend on


def metric(records: Records, arm: str, name: str) -> float:
    """One arm's metric.

    Raises:
        Invalid: the arm has no such metric.
    """
    found = records[arm].metrics.get(name)
    if found is None:
        raise Invalid(f"the arm {arm!r} has no metric {name!r}; it has {', '.join(records[arm].metrics)}")
    return found


def difference(name: str, better: str, worse: str) -> Callable[[Records], float]:
    """The paired difference of a metric between two arms."""
    return lambda records: metric(records, better, name) - metric(records, worse, name)


def level(name: str, arm: str) -> Callable[[Records], float]:
    """A metric of one arm."""
    return lambda records: metric(records, arm, name)

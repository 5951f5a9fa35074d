"""Numbers with an explicit reduction, so that merging workers or steps is no guess. Names are ``area/what_unit``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    sum: float
    count: float = 1.0

    def merge(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else float("nan")


@dataclass(frozen=True, slots=True)
class Sum:
    value: float

    def merge(self, other: Sum) -> Sum:
        return Sum(self.value + other.value)


@dataclass(frozen=True, slots=True)
class Max:
    value: float

    def merge(self, other: Max) -> Max:
        # A NaN wins on either side; plain max() would keep it or drop it by the order of the arguments.
        return self if math.isnan(self.value) or self.value >= other.value else other


Metric = Mean | Sum | Max


def merge(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Reduce metrics of the same name by their own rule.

    Raises:
        TypeError: one name appears with two different reductions.
    """
    out: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            if name not in out:
                out[name] = metric
            elif type(out[name]) is not type(metric):
                raise TypeError(f"metric {name} is reduced as {type(out[name]).__name__} and {type(metric).__name__}")
            else:
                out[name] = out[name].merge(metric)  # type: ignore[arg-type]
    return out


def values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The plain numbers, by name."""
    return {name: metric.value for name, metric in sorted(metrics.items())}

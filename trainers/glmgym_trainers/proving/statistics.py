"""Intervals over seeds. Pure functions; the quantile of Student's distribution is computed here, without scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval by Student's t; infinitely wide for fewer than two values."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


class Verdict(StrEnum):
    YES = "yes"
    NO = "no"
    INCONCLUSIVE = "inconclusive"


def interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Mean and interval of independent values.

    Raises:
        ValueError: no values, or one is not finite.
    """
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval needs finite values, got {list(values)}")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, -math.inf, math.inf, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(0.5 + level / 2, count - 1) * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def verdict(found: Interval, *, above: float) -> Verdict:
    """Whether what was measured lies above a border: yes or no only if the whole interval does."""
    if found.low > above:
        return Verdict.YES
    return Verdict.NO if found.high < above else Verdict.INCONCLUSIVE


def t_quantile(probability: float, freedom: int) -> float:
    """The value that Student's t with ``freedom`` degrees of freedom stays below with ``probability``.

    Raises:
        ValueError: ``probability`` is not in (0.5, 1) or ``freedom`` < 1.
    """
    if not 0.5 < probability < 1.0 or freedom < 1:
        raise ValueError(f"needs a probability in (0.5, 1) and a degree of freedom, got {probability} and {freedom}")
    low, high = 0.0, 1.0
    while 0.5 + central_probability(high, freedom) / 2 < probability:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        if 0.5 + central_probability(middle, freedom) / 2 < probability:
            low = middle
        else:
            high = middle
    return high


def central_probability(t: float, freedom: int) -> float:
    """The chance that ``|T| < t``: the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3-4)."""
    theta = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2.0 / math.pi * (theta + sine * total) if odd else sine * total

"""Means with 95 % intervals over tasks. Owned here: what the independent unit is, and which interval is honest.

Attempts at one task are no independent evidence about other tasks, so every interval is over task means: a cluster
bootstrap whose clusters are the tasks. Three cases are known to fool a bootstrap and are treated apart. Tasks that were
each always or never solved, and fewer than five tasks, get Wilson's interval with the tasks as trials: no outcome from
0 to 1 varies more than solved-or-not. Where all tasks agree, Wilson's is that of the share of tasks that may differ.

Elsewhere it is BCa (Efron 1987) at levels widened from normal to Student quantiles (as Hesterberg 2015 does for the
percentile interval), because plain BCa and percentile intervals are too short below some 20 tasks;
``docs/evaluation.md`` has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
RESAMPLES = 2_000
FEW = 5  # tasks below which resampling says nothing
_SEED = 20_250_601  # of every bootstrap: the same data gives the same interval
_EXACT = 14  # up to so many differing tasks a sign-flip test enumerates every sign
_FLIPS = 20_000  # random ones beyond
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; ``count`` attempts over ``tasks`` tasks."""

    mean: float
    low: float
    high: float
    count: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def plain(self) -> dict[str, float | int | None]:
        """Plain data for JSON: what is not finite does not exist."""
        return {
            "mean": json_number(self.mean),
            "low": json_number(self.low),
            "high": json_number(self.high),
            "attempts": self.count,
            "tasks": self.tasks,
        }


def estimate(by_task: Sequence[Sequence[float]]) -> Estimate:
    """The mean of task means with its interval; NaN without a task.

    Args:
        by_task: the outcomes of each task's attempts, at least one each.
    """
    means = np.array([np.mean(values) for values in by_task], dtype=np.float64)
    n, count = len(means), sum(map(len, by_task))
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, 0)
    mean = float(means.mean())
    if set(means.tolist()) <= {0.0, 1.0}:
        return Estimate(mean, *wilson(mean, n), count, n)
    return Estimate(mean, *bootstrap_interval(means, bounds=(0.0, 1.0)), count, n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a binomial share over ``n`` trials (Wilson 1927). It holds the share."""
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    low, high = min(centre - half, share), max(centre + half, share)  # rounding alone may exclude a share of 0 or 1
    return max(0.0, low), min(1.0, high)


def bootstrap_interval(
    values: NDArray[np.float64], *, bounds: tuple[float, float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The 95 % interval of the mean of independent values, [n].

    Fewer than ``FEW`` values get Wilson's interval, stretched to ``bounds``. Where all agree there is nothing to
    resample: up to u = Wilson(0 of n) of all tasks may differ from them, as far as the bounds allow, which gives
    [v - u (v - least), v + u (most - v)]. Values beyond the bounds have neither guide: theirs is then infinite.
    """
    least, most = bounds
    n, mean = len(values), float(values.mean())
    away = values - mean
    spread = float((away**2).sum())
    inside = bool((values >= least).all() and (values <= most).all())
    if inside and n < FEW:
        low, high = wilson((mean - least) / (most - least), n)
        return least + (most - least) * low, least + (most - least) * high
    if spread <= 1e-24 * n:
        if n < 2 or not inside:
            return -math.inf, math.inf
        may_differ = wilson(0.0, n)[1]
        return mean - may_differ * (mean - least), mean + may_differ * (most - mean)
    means = _resampled_means(values, resamples)
    ties = np.abs(means - mean) <= 1e-12
    below = float((means[~ties] < mean).sum() + ties.sum() / 2) / resamples
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    # Of a mean, the jackknife's acceleration is a sixth of the skewness over sqrt(n).
    acceleration = float((away**3).sum()) / (6 * spread**1.5)
    reach = math.sqrt(n / (n - 1)) * _student_975(n - 1)
    levels = [_level(bias, acceleration, sign * reach) for sign in (-1, 1)]
    low, high = np.quantile(means, levels).tolist()
    return low, high


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Second minus first, over the tasks that both have: a mean with its interval, and how many tasks went which way.

    ``p_value`` is two-sided, of a sign-flip permutation test over tasks: how often chance alone, the two being alike,
    gives a mean difference at least this large.
    """

    difference: Estimate
    better: int
    worse: int
    same: int
    p_value: float


def paired(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> PairedDifference:
    """Compare two evaluations of the same tasks, task by task.

    Args:
        first, second: outcomes of each task's attempts, the tasks in the same order, at least one attempt each.
    """
    pairs = zip(first, second, strict=True)
    differences = np.array([np.mean(two) - np.mean(one) for one, two in pairs], dtype=np.float64)
    count = sum(map(len, first)) + sum(map(len, second))
    n = len(differences)
    if n == 0:
        return PairedDifference(Estimate(math.nan, math.nan, math.nan, 0, 0), 0, 0, 0, math.nan)
    interval = bootstrap_interval(differences, bounds=(-1.0, 1.0))
    better, worse = int((differences > 1e-12).sum()), int((differences < -1e-12).sum())
    found = Estimate(float(differences.mean()), *interval, count, n)
    return PairedDifference(found, better, worse, n - better - worse, sign_flip_p(differences))


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """Two-sided p-value of a mean difference under random signs, [n]; exact for few non-zero differences."""
    moved = differences[np.abs(differences) > 1e-12]
    n = len(moved)
    if n == 0:
        return 1.0
    observed = abs(float(moved.sum())) - 1e-9
    if n <= _EXACT:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ moved) >= observed).mean())
    rng = np.random.default_rng(_SEED)
    hits = sum(
        int((np.abs((1 - 2 * rng.integers(0, 2, (1000, n))) @ moved) >= observed).sum()) for _ in range(_FLIPS // 1000)
    )
    return (hits + 1) / (_FLIPS + 1)


def json_number(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _resampled_means(values: NDArray[np.float64], resamples: int) -> NDArray[np.float64]:
    """[resamples], in pieces that keep memory bounded."""
    rng = np.random.default_rng(_SEED)
    n, step = len(values), max(1, 2_000_000 // len(values))
    parts = [
        values[rng.integers(0, n, (min(step, resamples - at), n))].mean(axis=1) for at in range(0, resamples, step)
    ]
    return np.concatenate(parts)


def _level(bias: float, acceleration: float, z: float) -> float:
    shifted = bias + z
    scale = 1 - acceleration * shifted
    if scale <= 0:  # beyond what the correction is made for: the end of the distribution
        return 0.0 if z < 0 else 1.0
    return _NORMAL.cdf(bias + shifted / scale)


def _student_975(df: int) -> float:
    """Student's 97.5 % quantile: exact for 1 and 2 degrees of freedom, else its expansion in 1/df (within 1 %)."""
    if df == 1:
        return 12.706204736432095
    if df == 2:
        return 4.302652729911275
    z = Z95
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )

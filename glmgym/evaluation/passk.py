"""pass@k and pass^k of one task, without bias, from n attempts of which c solved it. Owned here: the two formulas.

Both average over every way of choosing k of the n attempts: pass@k is the share of choices with at least one solved
attempt (Chen et al. 2021, arXiv 2107.03374, equation 1), pass^k the share in which all are (tau-bench, Yao et al. 2024,
arXiv 2406.12045). Where k > n there is nothing to choose from and the value does not exist: NaN, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

SOLVED = 1.0 - 1e-6  # an outcome from here on counts as solved; partial credit does not


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that at least one of k attempts solves the task; NaN for k > n.

    Raises:
        ValueError: not 0 <= c <= n, or k < 1.
    """
    _check(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k) if k <= n else math.nan


def pass_hat_k(n: int, c: int, k: int) -> float:
    """C(c, k) / C(n, k): the chance that all of k attempts solve the task; NaN for k > n.

    Raises:
        ValueError: not 0 <= c <= n, or k < 1.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k) if k <= n else math.nan


def mean_over_tasks(
    counts: Iterable[tuple[int, int]], k: int, formula: Callable[[int, int, int], float] = pass_at_k
) -> tuple[float, int]:
    """The mean of ``formula`` over the tasks for which it exists, and how many those are; (NaN, 0) if there is none.

    Args:
        counts: (n, c) of each task; failed attempts are no part of n.
    """
    values = [value for n, c in counts if not math.isnan(value := formula(n, c, k))]
    return (math.fsum(values) / len(values), len(values)) if values else (math.nan, 0)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} solved of {n} attempts: must be from 0 to {n}")
    if k < 1:
        raise ValueError(f"k={k}: at least 1 attempt is chosen")

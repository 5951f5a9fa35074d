"""pass@k and pass^k against every way of choosing, and means over tasks that have too few attempts."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from glmgym.evaluation.passk import mean_over_tasks, pass_at_k, pass_hat_k


@pytest.mark.parametrize("n", range(1, 9))
def test_both_are_the_share_of_all_choices(n: int) -> None:
    """E1: enumerated for every n up to 8, every c, every k."""
    for c in range(n + 1):
        solved = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            choices = list(combinations(solved, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)
            assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, choices)) / len(choices), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [
        (4, 1, 2, 0.5, 0.0),  # 3 of 6 pairs hold the solved one; no pair is all solved
        (4, 2, 2, 5 / 6, 1 / 6),
        (200, 100, 1, 0.5, 0.5),
        (3, 0, 3, 0.0, 0.0),
        (3, 3, 3, 1.0, 1.0),
    ],
)
def test_by_hand(n: int, c: int, k: int, at: float, hat: float) -> None:
    assert (pass_at_k(n, c, k), pass_hat_k(n, c, k)) == (pytest.approx(at), pytest.approx(hat))


def test_more_than_there_are_has_no_value() -> None:
    """E1: NaN, never a lie; also for a task that has nothing but failures."""
    assert math.isnan(pass_at_k(4, 4, 5))
    assert math.isnan(pass_hat_k(4, 4, 5))
    assert pass_at_k(4, 4, 4) == 1.0
    assert math.isnan(pass_at_k(0, 0, 1))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    for formula in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=r"solved of|k=0"):
            formula(n, c, k)


def test_the_mean_says_over_how_many_tasks_it_is() -> None:
    """E1: n is each task's own. pass@2 of (4, 1) is 0.5, of (2, 2) 1; a task with one attempt left has none."""
    assert mean_over_tasks([(4, 1), (2, 2), (1, 1)], 2) == (0.75, 2)
    assert mean_over_tasks([(4, 1), (2, 2), (1, 1)], 2, pass_hat_k) == (0.5, 2)
    value, tasks = mean_over_tasks([(1, 1)], 2)
    assert math.isnan(value)
    assert tasks == 0

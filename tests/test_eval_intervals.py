"""Intervals over tasks: hand-computed ends, coverage by simulation, and paired comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from glmgym.evaluation.intervals import bootstrap_interval, estimate, paired, sign_flip_p, wilson


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [
        (0.0, 10, 0.0, 0.27753),  # z^2 / (n + z^2) = 3.84146 / 13.84146
        (1.0, 10, 0.72247, 1.0),
        (0.5, 10, 0.23659, 0.76341),
        (0.9, 200, 0.85060, 0.93433),
        (0.5, 1, 0.05462, 0.94538),
    ],
)
def test_wilson_by_hand(share: float, n: int, low: float, high: float) -> None:
    assert wilson(share, n) == pytest.approx((low, high), abs=1e-5)


def test_wilson_holds_the_share() -> None:
    """At 10 of 10 tasks rounding put the upper end a hair below 1: a run crashed as it drew that error bar."""
    for n in range(1, 200):
        for k in range(n + 1):
            low, high = wilson(k / n, n)
            assert 0.0 <= low <= k / n <= high <= 1.0


def test_solved_or_not_gets_wilsons_interval_over_tasks() -> None:
    """5 of 10 tasks; a second attempt with the same result tells nothing new about other tasks."""
    for attempts in (1, 2):
        found = estimate([[float(task < 5)] * attempts for task in range(10)])
        assert (found.mean, found.count, found.tasks) == (0.5, 10 * attempts, 10)
        assert (found.low, found.high) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert str(estimate([[float(task < 5)] for task in range(10)])) == "0.500 [0.237, 0.763]"


def test_tasks_are_the_units() -> None:
    """Twice the attempts with the same outcomes is no more evidence; twice the tasks is."""
    outcomes: list[Sequence[float]] = [[0.0, 0.5], [1.0, 0.5], [0.0, 0.0], [1.0, 1.0], [0.5, 1.0]]
    once, again = estimate(outcomes), estimate([[*values, *values] for values in outcomes])
    assert (once.low, once.high) == (again.low, again.high)
    assert (once.count, again.count, again.tasks) == (10, 20, 5)
    wider = estimate(outcomes * 4)
    assert wider.high - wider.low < 0.6 * (once.high - once.low)
    assert once.low < once.mean == 0.55 < once.high


def test_where_all_tasks_agree_the_interval_is_no_point() -> None:
    """Ten tasks of 0.5: up to Wilson(0 of 10) = 0.27753 of all tasks may differ, by 0.5 at most: 0.5 -+ 0.13877."""
    found = estimate([[0.0, 1.0]] * 10)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.138767, 0.5 + 0.138767), abs=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.25]], (0.01463, 0.88209)),  # one task says little: Wilson of a quarter of one trial
        ([[0.25], [0.5]], (0.05610, 0.85831)),  # two values, and resampling them would give [0.25, 0.5]
        ([[-3.0]], (-math.inf, math.inf)),
        ([[1.0]], (0.20654, 1.0)),  # one task, solved: Wilson
        ([[7.0], [7.0]], (-math.inf, math.inf)),  # beyond 0 to 1
    ],
)
def test_what_tells_nothing_is_as_wide_as_that(values: list[list[float]], expected: tuple[float, float]) -> None:
    found = estimate(values)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-5)


def test_no_task_has_no_mean() -> None:
    assert math.isnan(estimate([]).mean)


def test_an_interval_is_the_same_every_time_and_moves_with_its_data() -> None:
    values = np.random.default_rng(3).beta(2, 3, 40)
    low, high = bootstrap_interval(values, bounds=(0, 1))
    assert (low, high) == bootstrap_interval(values, bounds=(0, 1))
    assert bootstrap_interval(values + 5, bounds=(0, 1)) == pytest.approx((low + 5, high + 5), abs=1e-9)
    normal = 1.96 * values.std(ddof=1) / math.sqrt(40)  # at 40 tasks without skew the two must be near
    assert (values.mean() - low, high - values.mean()) == pytest.approx((normal, normal), rel=0.25)


@pytest.mark.parametrize(("alpha", "beta", "tasks"), [(1.0, 1.0, 20), (0.3, 0.3, 10), (0.5, 4.0, 20)])
def test_the_interval_covers_the_truth(alpha: float, beta: float, tasks: int) -> None:
    """Tasks of random difficulty, four attempts each: 95 % intervals hold the true mean in 90 to 99.5 % of worlds."""
    rng = np.random.default_rng(11)
    truth, held, worlds = alpha / (alpha + beta), 0, 400
    for _ in range(worlds):
        difficulty = rng.beta(alpha, beta, tasks)
        found = estimate((rng.random((tasks, 4)) < difficulty[:, None]).astype(float).tolist())
        held += found.low <= truth <= found.high
    assert 0.90 <= held / worlds <= 0.995


def test_treating_attempts_as_tasks_would_not_cover() -> None:
    """The law has teeth: with attempts as the units the interval misses the truth far more often than 1 in 20."""
    rng = np.random.default_rng(12)
    held = 0
    for _ in range(300):
        difficulty = rng.beta(0.3, 0.3, 20)
        outcomes = (rng.random((20, 8)) < difficulty[:, None]).astype(float)
        found = estimate([[value] for value in outcomes.ravel()])
        held += found.low <= 0.5 <= found.high
    assert held / 300 < 0.7


def test_a_paired_comparison_by_hand() -> None:
    """Differences 0, 1, 1, 0, -1 -> mean 0.2; with three that moved every |sum| is 1 or 3, so 1 is reached always."""
    first = [[1.0], [0.0], [0.0], [0.0], [1.0]]
    second = [[1.0], [1.0], [1.0], [0.0], [0.0]]
    found = paired(first, second)
    assert found.difference.mean == pytest.approx(0.2)
    assert (found.better, found.same, found.worse) == (2, 2, 1)
    assert found.p_value == 1.0
    assert found.difference.low < 0 < found.difference.high
    assert (found.difference.count, found.difference.tasks) == (10, 5)


def test_the_p_value_is_exact_for_few_tasks() -> None:
    """Four tasks that all got better: 2 of 16 sign patterns are as extreme."""
    assert sign_flip_p(np.array([1.0, 1.0, 1.0, 1.0])) == pytest.approx(2 / 16)
    assert sign_flip_p(np.array([1.0, 0.0, 0.0])) == 1.0
    assert sign_flip_p(np.zeros(5)) == 1.0


def test_the_p_value_of_many_tasks_is_that_of_the_exact_one() -> None:
    """15 equal differences are drawn at random, 14 enumerated; 20 000 draws tell 4 heads in 15 to a percent."""
    differences = np.array([1.0] * 11 + [-1.0] * 4)
    exact = sum(math.comb(15, k) for k in range(16) if abs(15 - 2 * k) >= 7) / 2**15
    assert sign_flip_p(differences) == pytest.approx(exact, abs=0.01)


def test_pairing_sees_what_two_intervals_hide() -> None:
    """40 tasks of very different difficulty, each a little better: the intervals overlap, the difference is clear."""
    rng = np.random.default_rng(5)
    base = rng.random(40) * 0.8
    first, second = [[x] for x in base], [[x + 0.1 + 0.05 * rng.standard_normal()] for x in base]
    assert estimate(first).high > estimate(second).low
    found = paired(first, second)
    assert found.difference.low > 0.05
    assert found.p_value < 0.001


def test_two_that_agree_on_every_task_may_still_differ_elsewhere() -> None:
    """Ten tasks without a difference: up to 0.27753 of all tasks may differ, by 1 at most, either way."""
    found = paired([[1.0]] * 10, [[1.0]] * 10)
    assert (found.difference.low, found.difference.high) == pytest.approx((-0.27753, 0.27753), abs=1e-5)
    assert found.p_value == 1.0

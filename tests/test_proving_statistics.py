"""Intervals over seeds against tables and hand-worked numbers, and which side of a border a verdict falls on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym_trainers.proving.experiment import Claim, Invalid, Record, difference, level
from glmgym_trainers.proving.statistics import Interval, Verdict, central_probability, interval, t_quantile, verdict


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (10, 2.22814), (30, 2.04227)],
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-5)


def test_other_levels_and_the_normal_limit() -> None:
    assert t_quantile(0.95, 4) == pytest.approx(2.13185, rel=1e-5)
    assert t_quantile(0.995, 9) == pytest.approx(3.24984, rel=1e-5)
    assert t_quantile(0.975, 100_001) == pytest.approx(1.95999, rel=1e-5)
    assert central_probability(1.0, 1) == pytest.approx(0.5)  # Cauchy: half of it lies within 1


@pytest.mark.parametrize(("probability", "freedom"), [(0.5, 3), (1.0, 3), (0.975, 0)])
def test_quantiles_that_do_not_exist(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="probability"):
        t_quantile(probability, freedom)


def test_an_interval_by_hand() -> None:
    """1, 2, 3: deviation 1, so half of the interval is 4.30265 / sqrt(3)."""
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert (found.low, found.high) == pytest.approx((2.0 - 2.48414, 2.0 + 2.48414), rel=1e-4)


def test_one_value_decides_nothing() -> None:
    found = interval([0.7])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert verdict(found, above=0.0) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_number_has_no_interval(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        interval(values)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.31, 0.5, Verdict.YES),
        (0.3, 0.5, Verdict.INCONCLUSIVE),
        (0.1, 0.3, Verdict.INCONCLUSIVE),
        (0.1, 0.29, Verdict.NO),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, expected: Verdict) -> None:
    assert verdict(Interval((low + high) / 2, low, high, 5), above=0.3) is expected


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(-1e3, 1e3))
def test_a_shift_moves_the_interval_and_keeps_its_width(values: list[float], shift: float) -> None:
    one, other = interval(values), interval([value + shift for value in values])
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-6)
    assert other.half == pytest.approx(one.half, abs=1e-6)


def seeds(*pairs: tuple[float, float]) -> list[dict[str, Record]]:
    return [{"new": Record({"success": new}), "old": Record({"success": old})} for new, old in pairs]


def test_a_claim_is_judged_on_paired_differences() -> None:
    """The arms' own spread (0.1 to 0.9) is wide; the difference is 0.1 on every seed, and so holds without doubt."""
    claim = Claim("new is better", "new - old", difference("success", "new", "old"))
    found, holds = claim.judge(seeds((0.2, 0.1), (0.6, 0.5), (0.9, 0.8)))
    assert found.mean == pytest.approx(0.1)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert holds is Verdict.YES


def test_a_claim_may_have_a_border_of_its_own() -> None:
    claim = Claim("new is high", "new", level("success", "new"), above=0.95)
    assert claim.judge(seeds((0.9, 0.0), (0.91, 0.0), (0.92, 0.0)))[1] is Verdict.NO


def test_a_missing_metric_names_what_there_is() -> None:
    with pytest.raises(Invalid, match=r"'new' has no metric 'speed'; it has success"):
        level("speed", "new")(seeds((0.1, 0.2))[0])


def test_a_record_holds_numbers_only() -> None:
    with pytest.raises(Invalid, match="'success' is nan"):
        Record({"success": math.nan})

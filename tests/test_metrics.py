"""Metrics reduce by their own rule, in any order and any grouping."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym.metrics import Max, Mean, Metric, Sum, merge, values

NUMBERS = st.integers(-1000, 1000).map(float)
METRICS = st.one_of(
    st.lists(st.builds(Mean, NUMBERS, st.integers(1, 9).map(float)), min_size=1, max_size=6),
    st.lists(st.builds(Sum, NUMBERS), min_size=1, max_size=6),
    st.lists(st.builds(Max, NUMBERS), min_size=1, max_size=6),
)


def test_each_reduction_by_hand() -> None:
    workers: list[dict[str, Metric]] = [
        {"a/mean": Mean(6.0, 3), "a/sum": Sum(2.0), "a/max": Max(2.0)},
        {"a/mean": Mean(2.0), "a/sum": Sum(5.0), "a/max": Max(-1.0)},
    ]
    assert values(merge(workers)) == {"a/max": 2.0, "a/mean": 2.0, "a/sum": 7.0}  # the mean is 8 / 4, not (2 + 2) / 2


def test_a_mean_is_over_the_items_not_over_the_workers() -> None:
    """1 token of worker A and 3 of worker B: (4 + 0 + 0 + 0) / 4 = 1, where a mean of means says 2."""
    assert values(merge([{"m": Mean(4.0, 1)}, {"m": Mean(0.0, 3)}])) == {"m": 1.0}


@given(METRICS, st.integers(0, 6))
def test_grouping_and_order_do_not_matter(metrics: list[Metric], cut: int) -> None:
    parts = [{"m": metric} for metric in metrics]
    assert merge(parts) == merge(parts[::-1]) == merge([merge(parts[:cut]), merge(parts[cut:])])


@pytest.mark.parametrize("order", list(itertools.permutations([1.0, math.nan, 2.0])))
def test_a_nan_is_not_hidden_by_the_order(order: tuple[float, ...]) -> None:
    assert math.isnan(values(merge({"m": Max(value)} for value in order))["m"])


def test_a_mean_of_nothing_is_not_zero() -> None:
    assert math.isnan(Mean(0.0, 0.0).value)


def test_one_name_has_one_reduction() -> None:
    with pytest.raises(TypeError, match="metric m is reduced as Mean and Sum"):
        merge([{"m": Mean(1.0)}, {"m": Sum(1.0)}])

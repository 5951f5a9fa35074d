"""The named means: what one token counts, by hand; and the law that no cut of a batch can change a weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_glm import trajectory

from glmgym_trainers.batch import Row, split_trajectories
from glmgym_trainers.reductions import Reduction, weigh


def rows(*trajectories: list[str]) -> list[Row]:
    """Trajectories as the patterns of their segments."""
    made = [trajectory(f"t{k}", patterns) for k, patterns in enumerate(trajectories)]
    return [Row.of(each, index) for each in made for index in range(len(each.segments))]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("token_mean", [1 / 10] * 3),
        ("seq_mean", [1 / (4 * 3), 1 / (1 * 3), 1 / (5 * 3)]),
        ("rollout_mean", [1 / (4 * 2), 1 / (6 * 2), 1 / (6 * 2)]),
    ],
)
def test_three_means_of_the_same_batch(reduction: Reduction, expected: list[float]) -> None:
    """One trajectory of 4 tokens; another of two segments with 1 and 5 tokens. The prompt never counts."""
    batch = rows(["pppaaaa"], ["pa", "paaooaaa"])
    assert [row.weight for row in weigh(batch, reduction)] == pytest.approx(expected)


def test_one_segment_more_does_not_change_a_trajectory_s_weight() -> None:
    """O2: 1 x 4 tokens against 4 x 1 token is .5 / .5 as a token mean and as a rollout mean, .2 / .8 as a seq mean."""
    batch = rows(["paaaa"], ["pa"] * 4)
    for reduction, share in (("token_mean", 0.5), ("rollout_mean", 0.5), ("seq_mean", 0.2)):
        first = weigh(batch, reduction)[0]  # type: ignore[arg-type]
        assert first.weight * first.num_trained == pytest.approx(share)


@pytest.mark.parametrize("reduction", ["token_mean", "seq_mean", "rollout_mean"])
def test_a_copy_counts_as_if_the_row_stood_there_twice(reduction: Reduction) -> None:
    """4.6, a group filled by repeating: rows of 1 and 3 tokens, the first one twice."""
    once, twice = rows(["pa"], ["paaa"])
    filled = weigh([replace(once, copies=2), twice], reduction)
    expected = {"token_mean": (2 / 5, 1 / 5), "seq_mean": (2 / 3, 1 / 9), "rollout_mean": (2 / 3, 1 / 9)}
    assert [row.weight for row in filled] == pytest.approx(expected[reduction])


patterns = st.lists(st.lists(st.sampled_from(["pa", "paa", "paoaa", "ppp"]), min_size=1, max_size=3), max_size=6)


@settings(max_examples=50, deadline=None)
@given(patterns, st.sampled_from(["token_mean", "seq_mean", "rollout_mean"]))
def test_weights_add_up_to_one_whatever_the_batch(batch: list[list[str]], reduction: Reduction) -> None:
    """Rows without a trained token count nothing; a batch without any has no weights to add up."""
    weighed = weigh(rows(*batch), reduction)
    total = sum(row.weight * row.num_trained for row in weighed)
    assert total == pytest.approx(1.0 if any(row.num_trained for row in weighed) else 0.0)


@settings(max_examples=50, deadline=None)
@given(patterns, st.integers(1, 4))
def test_mini_batches_keep_trajectories_whole(batch: list[list[str]], parts: int) -> None:
    """Every row is in exactly one share, with all other rows of its trajectory; shares differ by one trajectory."""
    given_rows = rows(*batch)
    shares = split_trajectories(given_rows, parts)
    owners = [{row.trajectory_id for row in share} for share in shares]
    assert sum(len(share) for share in shares) == len(given_rows)
    assert sum(len(owner) for owner in owners) == len({row.trajectory_id for row in given_rows})
    if owners:
        assert max(map(len, owners)) - min(map(len, owners)) <= 1

"""Credit across the parts of one rollout: published vectors, known wrong answers, and what a single part must equal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym_trainers.credit import Floats, adaptive_lambda, critic_targets, cross_segment_gae, skip_observation_gae

# Algorithm specification 6.6: three segments of 3, 2 and 2 trained tokens, reward 1, gamma 1, lambda .9.
VALUES = [[0.1, 0.2, 0.3], [0.2, 0.4], [0.5, 0.6]]
CORRECTED = [[0.4966677, 0.478953, 0.45927], [0.5994, 0.486], [0.46, 0.4]]
LOCAL = [[0.757, 0.73, 0.7], [0.74, 0.6], [0.46, 0.4]]
STITCHED = [0.5920354, 0.546706, 0.49634, 0.6626, 0.514, 0.46, 0.4]


def masks(values: list[list[float]]) -> list[list[bool]]:
    return [[True] * len(each) for each in values]


def gae(values: list[list[float]], reward: float = 1.0, *, lam: float = 0.9, **options: object) -> list[list[float]]:
    advantages, _ = cross_segment_gae(values, masks(values), reward, gamma=1.0, lam=lam, **options)  # type: ignore[arg-type]
    return [each.tolist() for each in advantages]


def near(expected: list[list[float]]) -> list[object]:
    return [pytest.approx(each, abs=1e-9) for each in expected]


def joined(parts: list[list[float]]) -> list[float]:
    return [number for part in parts for number in part]


def stitched(values: list[list[float]], reward: float, gamma: float, lam: float) -> Floats:
    flat = joined(values)
    rewards = [0.0] * (len(flat) - 1) + [reward]
    return skip_observation_gae(flat, rewards, [1] * len(flat), gamma=gamma, lam=lam)


def test_later_parts_shrink_the_whole_local_advantage() -> None:
    """6.6: factors .6561, .81 and 1."""
    assert gae(VALUES) == near(CORRECTED)
    assert gae(VALUES, factor=False) == near(LOCAL)
    assert gae(VALUES, 0.0) == near([[-0.0347733, -0.111537, -0.19683], [-0.1296, -0.324], [-0.44, -0.6]])
    lam = adaptive_lambda(7, 1.5)
    assert gae(VALUES, lam=lam) == near(
        [[0.5116132126, 0.4914039589, 0.4690674153], [0.6080984775, 0.4911564626], [0.4619047619, 0.4]]
    )
    assert gae([[0.2, 0.4], [0.6]], lam=0.8) == near([[0.544, 0.480], [0.400]])


def test_the_known_wrong_and_the_joined_advantages_are_not_ours() -> None:
    """6.6: the reward on the last segment only (an ablation by name), and the estimate over the joined parts."""
    last = [[-0.0347733, -0.111537, -0.19683], [-0.1296, -0.324], [0.46, 0.4]]
    assert gae(VALUES, reward_on="last_only") == near(last)
    assert stitched(VALUES, 1.0, 1.0, 0.9).tolist() == pytest.approx(STITCHED)
    for wrong in (joined(last), STITCHED):
        assert np.abs(np.subtract(joined(gae(VALUES)), wrong)).max() > 0.05


@pytest.mark.parametrize(
    ("critic_lam", "expected"),
    [(0.9, [[0.857, 0.93, 1.0], [0.94, 1.0], [0.96, 1.0]]), (1.0, [[1, 1, 1], [1, 1], [1, 1]])],
)
def test_critic_targets_are_local(critic_lam: float, expected: list[list[float]]) -> None:
    """6.6: "corrected A + V" would be [[.5966677, .678953, .75927], [.7994, .886], ...] and fade into V."""
    for factor in (True, False):
        _, targets = cross_segment_gae(
            VALUES, masks(VALUES), 1.0, gamma=1.0, lam=0.9, critic_lam=critic_lam, factor=factor
        )
        assert [each.tolist() for each in targets] == near(expected)


def test_a_part_without_a_trained_token_counts_nothing() -> None:
    """6.5, also where the reward goes to the last part only."""
    values = [VALUES[0], [9.0], *VALUES[1:], [math.nan]]
    trained = [*masks(VALUES[:1]), [False], *masks(VALUES[1:]), [False]]
    for reward_on, expected in (("each_segment", gae(VALUES)), ("last_only", gae(VALUES, reward_on="last_only"))):
        advantages, targets = cross_segment_gae(
            values,
            trained,
            1.0,
            gamma=1.0,
            lam=0.9,
            reward_on=reward_on,  # type: ignore[arg-type]
        )
        got = [each.tolist() for each in advantages]
        assert [got[0], got[2], got[3]] == near(expected)
        assert (got[1], got[4], targets[1].tolist(), targets[4].tolist()) == ([0.0], [0.0], [0.0], [0.0])


def test_a_part_that_ends_in_an_observation_keeps_the_reward() -> None:
    """6.5: every compacted segment does; the reward belongs on the last trained token, observations bridge."""
    values = [[0.1, math.nan, 0.2, 0.3, math.nan], [0.2, 0.4, math.nan], [0.5, 0.6]]
    trained = [[True, False, True, True, False], [True, True, False], [True, True]]
    advantages, targets = cross_segment_gae(values, trained, 1.0, gamma=1.0, lam=0.9)
    assert [a[np.asarray(m)].tolist() for a, m in zip(advantages, trained, strict=True)] == near(CORRECTED)
    assert all(not a[~np.asarray(m)].any() for a, m in zip([*advantages, *targets], trained * 2, strict=True))


def test_a_long_rest_of_the_rollout_fades_to_zero_and_to_no_error() -> None:
    """6.5: (gamma lambda) ** 100000 is 0 in float32 and no overflow; lambda 0 leaves the last part alone."""
    values = [[0.5], [0.0] * 100_000]
    (first, _), _ = cross_segment_gae(values, masks(values), 1.0, gamma=1.0, lam=0.99)
    assert 0.0 <= first[0] < 1e-300
    assert gae(VALUES, lam=0.0) == near([[0, 0, 0], [0, 0], [0.1, 0.4]])


def test_with_values_of_zero_the_reward_fades_by_its_distance() -> None:
    """6.6."""
    zeros = [[0.0] * len(part) for part in VALUES]
    assert joined(gae(zeros)) == pytest.approx([0.531441, 0.59049, 0.6561, 0.729, 0.81, 0.9, 1.0])


parts = st.lists(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=4), min_size=1, max_size=4)
share = st.floats(0.0, 1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=8), st.floats(-2.0, 2.0), share, share)
def test_a_single_part_is_plain_estimation(values: list[float], reward: float, gamma: float, lam: float) -> None:
    """Invariant 5."""
    (advantages,), (targets,) = cross_segment_gae([values], masks([values]), reward, gamma=gamma, lam=lam)
    rewards = [0.0] * (len(values) - 1) + [reward]
    assert advantages == pytest.approx(stitched([values], reward, gamma, lam))
    assert targets == pytest.approx(critic_targets(values, rewards, [1] * len(values), gamma=gamma))


@settings(max_examples=40, deadline=None)
@given(parts, st.floats(-2.0, 2.0), share, share)
def test_with_values_of_zero_the_cut_does_not_matter(
    cut: list[list[float]], reward: float, gamma: float, lam: float
) -> None:
    """Invariant 4: the reward's distance is exact."""
    zeros = [[0.0] * len(part) for part in cut]
    advantages, _ = cross_segment_gae(zeros, masks(zeros), reward, gamma=gamma, lam=lam)
    assert np.concatenate(advantages) == pytest.approx(stitched(zeros, reward, gamma, lam))


@settings(max_examples=30, deadline=None)
@given(parts, st.floats(-2.0, 2.0))
def test_at_gamma_and_lambda_one_every_part_gets_its_distance_to_the_reward(
    cut: list[list[float]], reward: float
) -> None:
    """Invariant 11, part by part."""
    assert [pytest.approx(each) for each in gae(cut, reward, lam=1.0)] == [[reward - v for v in part] for part in cut]

"""Skip-observation GAE, critic targets and group baselines: published vectors, known wrong answers, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym_trainers.credit import (
    Credit,
    RunningMean,
    adaptive_lambda,
    critic_targets,
    explained_variance,
    fill_group,
    group_mean_advantage,
    group_scaled_advantage,
    has_signal,
    skip_observation_gae,
)

# Algorithm specification 5.5: a0 a0 | o o o | a1 | o o | a2 a2, reward 1 on the last token.
MASK = [1, 1, 0, 0, 0, 1, 0, 0, 1, 1]
VALUES = [0.2, 0.3, 0.9, 0.9, 0.9, 0.4, -0.5, -0.5, 0.5, 0.6]
REWARDS = [0.0] * 9 + [1.0]
AT_LAMBDA_09 = [0.60634, 0.5626, 0.514, 0.46, 0.4]
REWARD_LOST = [-0.04976, -0.1664, -0.296, -0.44, -0.6]


def actions(
    values: list[float], rewards: list[float], mask: list[int], gamma: float, lam: float, bootstrap: float = 0.0
) -> list[float]:
    """Advantages at sampled positions, after checking that every other one is 0."""
    advantages = skip_observation_gae(values, rewards, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    sampled = np.asarray(mask, bool)
    assert not advantages[~sampled].any()
    return advantages[sampled].tolist()


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 0.9, AT_LAMBDA_09),
        (1.0, 1.0, [0.8, 0.7, 0.6, 0.5, 0.4]),
        (1.0, 0.0, [0.1, 0.1, 0.1, 0.1, 0.4]),
        (0.99, 0.95, [0.6624834552, 0.6012583255, 0.5372231, 0.4702, 0.4]),
        (1.0, adaptive_lambda(5, 1.5), [0.5525412346, 0.522162963, 0.4871111111, 0.4466666667, 0.4]),
        (1.0, adaptive_lambda(10, 1.5), [0.6652819753, 0.6056592593, 0.5417777778, 0.4733333333, 0.4]),
    ],
)
def test_published_vectors(gamma: float, lam: float, expected: list[float]) -> None:
    """5.5."""
    assert actions(VALUES, REWARDS, MASK, gamma, lam) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        [0.4568208166, 0.396467574, 0.24534, 0.46, 0.4],  # GAE over all tokens
        [0.2934073666, 0.214897074, 0.34034, 0.46, 0.4],  # observation values zeroed but kept in the recursion
        REWARD_LOST,
    ],
)
def test_the_known_wrong_advantages_are_not_ours(wrong: list[float]) -> None:
    """5.5, the negatives."""
    assert np.abs(np.subtract(actions(VALUES, REWARDS, MASK, 1.0, 0.9), wrong)).max() > 0.1


def test_gae_through_observations() -> None:
    """O1, both examples; the values 9 belong to observations."""
    assert actions([0.2, 0.4, 9, 9, 0.6, 0.8], [0, 0, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1], 1.0, 0.5) == pytest.approx(
        [0.375, 0.35, 0.3, 0.2]
    )
    assert actions([0.2, 0.4, 9], [0, 0, 1], [1, 1, 0], 1.0, 0.5) == pytest.approx([0.5, 0.6])


@pytest.mark.parametrize("at", [5, 6, 7])
def test_a_reward_on_an_observation_belongs_to_the_action_before_it(at: int) -> None:
    """5.5: 0.1 more on a1's token or on either observation token right after it."""
    rewards = list(REWARDS)
    rewards[at] += 0.1
    assert actions(VALUES, rewards, MASK, 1.0, 0.9) == pytest.approx([0.68734, 0.6526, 0.614, 0.46, 0.4])


def test_a_terminal_reward_on_a_trailing_observation_is_not_lost() -> None:
    """5.5: the episode ends right after a tool result."""
    got = actions([*VALUES, math.nan, math.nan], [0.0] * 11 + [1.0], [*MASK, 0, 0], 1.0, 0.9)
    assert got == pytest.approx(AT_LAMBDA_09)
    assert got != pytest.approx(REWARD_LOST, abs=0.1)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """5.5."""
    nothing = [0.0] * 10
    assert actions(VALUES, nothing, MASK, 1.0, 0.9, bootstrap=0.7) == pytest.approx([0.40951, 0.3439, 0.271, 0.19, 0.1])
    assert actions(VALUES, nothing, MASK, 1.0, 0.9) == pytest.approx(REWARD_LOST)


@pytest.mark.parametrize(("gamma", "expected"), [(1.0, [1.0] * 5), (0.99, [0.96059601, 0.970299, 0.9801, 0.99, 1.0])])
def test_critic_targets_are_discounted_returns(gamma: float, expected: list[float]) -> None:
    """5.5; lambda 1 whatever the policy uses, 0 where not sampled."""
    targets = critic_targets(VALUES, REWARDS, MASK, gamma=gamma)
    assert targets[np.asarray(MASK, bool)].tolist() == pytest.approx(expected)
    assert not targets[~np.asarray(MASK, bool)].any()


number = st.floats(-3.0, 3.0)
token = st.tuples(number, number, st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(token, min_size=1, max_size=20), st.data(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_inserting_observation_tokens_changes_no_action(
    columns: list[tuple[float, float, bool]], data: st.DataObject, gamma: float, lam: float
) -> None:
    """O1, invariant 6: k tokens with NaN values anywhere after the first action, 100 of them included."""
    values, rewards, mask = (list(column) for column in zip(*[(0.0, 0.0, True), *columns], strict=True))
    before = actions(values, rewards, mask, gamma, lam)
    at = data.draw(st.integers(1, len(mask)))
    k = data.draw(st.sampled_from([1, 3, 100]))
    longer = [
        [*column[:at], *[fill] * k, *column[at:]] for column, fill in ((values, math.nan), (rewards, 0.0), (mask, 0))
    ]
    assert actions(*longer, gamma, lam) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(number, number), min_size=1, max_size=15), number)
def test_lambda_one_is_return_minus_value_and_lambda_zero_is_one_step(
    columns: list[tuple[float, float]], bootstrap: float
) -> None:
    """Invariants 11 and 12, with gamma 1."""
    values, rewards = (list(column) for column in zip(*columns, strict=True))
    mask = [1] * len(values)
    returns = np.cumsum(rewards[::-1])[::-1] + bootstrap
    assert actions(values, rewards, mask, 1.0, 1.0, bootstrap) == pytest.approx((returns - values).tolist(), abs=1e-9)
    one_step = np.add(rewards, [*values[1:], bootstrap]) - values
    assert actions(values, rewards, mask, 1.0, 0.0, bootstrap) == pytest.approx(one_step.tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("alpha", "length", "expected"),
    [
        (1.5, 1, 1 / 3), (1.5, 2, 2 / 3), (1.5, 10, 0.93333333), (1.5, 100, 0.99333333), (1.5, 1000, 0.99933333),
        (1.5, 131072, 0.99999491), (0.05, 10, 0.0), (0.05, 20, 0.0), (0.05, 100, 0.8), (0.05, 1000, 0.98),
    ],
)  # fmt: skip
def test_adaptive_lambda(alpha: float, length: int, expected: float) -> None:
    """5.5; what would be negative (-1 at alpha 0.05 and length 10) is 0."""
    assert adaptive_lambda(length, alpha) == pytest.approx(expected, abs=5e-9)


def test_adaptive_lambda_stays_below_one_and_needs_an_action() -> None:
    assert 0.999 < adaptive_lambda(10**9, 1e12) < 1.0
    with pytest.raises(ValueError, match="action token"):
        adaptive_lambda(0, 1.5)


def test_no_action_no_advantage() -> None:
    assert skip_observation_gae([1.0, math.nan], [0.0, 5.0], [0, 0], gamma=1.0, lam=0.9).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "rewards", "mask", "gamma", "message"),
    [
        ([0.1, math.nan], [0.0, 1.0], [1, 1], 1.0, "not finite"),
        ([0.1, 0.2], [0.0, math.nan], [1, 1], 1.0, "not finite"),
        ([0.1, 0.2], [1.0, 0.0], [0, 1], 1.0, "before the first sampled"),
        ([0.1, 0.2], [0.0], [1, 1], 1.0, "equally long"),
        ([0.1, 0.2], [0.0, 1.0], [1, 1], 1.1, r"\[0, 1\]"),
    ],
)
def test_input_that_cannot_be_credited_is_refused(
    values: list[float], rewards: list[float], mask: list[int], gamma: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        skip_observation_gae(values, rewards, mask, gamma=gamma, lam=0.9)


def test_credit_must_be_finite_and_aligned() -> None:
    two, three = np.zeros(2, np.float32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="trajectory t segment 0: 2 advantages, 3 returns"):
        Credit("t", 0, two, three)
    with pytest.raises(ValueError, match="not finite"):
        Credit("t", 0, two + np.nan, two)


def test_group_baseline_is_the_mean_and_not_scaled() -> None:
    """1.3 of the specification: no division by a deviation; O5: a baseline over [1, 3, 2] is 2.0."""
    assert group_mean_advantage([1, 3, 2]).tolist() == [-1.0, 1.0, 0.0]
    assert group_mean_advantage([10, 30, 20]).tolist() == [-10.0, 10.0, 0.0]
    with pytest.raises(ValueError, match="finite rewards"):
        group_mean_advantage([1.0, math.nan])


@pytest.mark.parametrize(
    ("rewards", "ddof", "eps", "expected"),
    [
        ([1, 0, 0, 0], 0, 0.0, [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        ([1, 0, 0, 0], 1, 0.0, [1.5, -0.5, -0.5, -0.5]),
        ([1, 0, 0, 0], 1, 1e-6, [1.499997000006, -0.499999000002, -0.499999000002, -0.499999000002]),
        ([1, 1, 0, 0], 0, 0.0, [1, 1, -1, -1]),
        ([1, 1, 0, 0], 1, 0.0, [0.8660254, 0.8660254, -0.8660254, -0.8660254]),
        ([1, 1, 1], 1, 0.0, [0, 0, 0]),
        ([5.0], 1, 0.0, [0]),
    ],
)
def test_a_group_in_deviations(rewards: list[float], ddof: int, eps: float, expected: list[float]) -> None:
    """3.4; equal rewards and a group of one are 0, never NaN (3.3)."""
    assert group_scaled_advantage(rewards, ddof=ddof, eps=eps).tolist() == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1e9 + 0.1])
@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_equal_rewards_are_exactly_no_signal(reward: float, size: int) -> None:
    """3.3: a mean of equal numbers may differ in the last bit, and a deviation of 1e-17 would make that a signal."""
    for advantage in (group_mean_advantage([reward] * size), group_scaled_advantage([reward] * size, ddof=0)):
        assert not advantage.any()
        row = advantage.astype(np.float32)
        assert not has_signal([Credit("t", 0, row, row)])
    one = np.ones(2, np.float32)
    assert has_signal([Credit("t", 0, 0 * one, one), Credit("t", 1, one, 0 * one)])
    assert not has_signal([])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8), st.integers(-9, 9), st.sampled_from([0.5, 4.0]))
def test_a_shift_of_all_rewards_changes_nothing_and_a_scale_only_without_deviation(
    rewards: list[int], shift: int, scale: float
) -> None:
    """Invariant 10."""
    plain, moved = [float(r) for r in rewards], [scale * r + shift for r in rewards]
    assert group_mean_advantage(moved) == pytest.approx(scale * group_mean_advantage(plain))
    assert group_scaled_advantage(moved, ddof=1) == pytest.approx(group_scaled_advantage(plain, ddof=1))


def test_the_running_mean_remembers_the_last_rewards_of_each_key() -> None:
    """Window 2: baselines 0, 1, (1 + 0) / 2, (0 + 4) / 2; another key starts anew."""
    mean = RunningMean(2)
    assert [mean.advantage("a", reward) for reward in (1.0, 0.0, 4.0, 2.0)] == [1.0, -1.0, 3.5, 0.0]
    assert mean.advantage("b", 3.0) == 3.0
    with pytest.raises(ValueError, match="finite"):
        mean.advantage("a", math.nan)
    with pytest.raises(ValueError, match="window"):
        RunningMean(0)


@pytest.mark.parametrize(
    ("valid", "members"),
    [
        ([1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 2, 3, 4, 0, 1, 2]),
        ([1, 1, 1, 1, 0, 0, 0, 0], []),
        ([1], [0]),
        ([0], []),
        ([0, 1, 1, 1], [1, 2, 3, 1]),
        ([1, 1, 0, 0], []),
    ],
)
def test_a_group_needs_strictly_more_than_half(valid: list[int], members: list[int]) -> None:
    """4.6 (5 of 8 pads 3, 4 of 8 drops, G=1) and O5 (3 of 4 filled, 2 of 4 dropped)."""
    assert fill_group([bool(each) for each in valid]) == members


def test_explained_variance() -> None:
    """5.5; a critic off by a constant 1 explains everything or, uncentred, less than nothing."""
    returns = [1, 0, 1, 0]
    assert explained_variance(returns, [0.8, 0.1, 0.6, 0.3]) == pytest.approx(0.71)
    assert explained_variance(returns, [0.8, 0.1, 0.6, 0.3], centred=False) == pytest.approx(0.70)
    assert explained_variance(returns, [0.5] * 4) == pytest.approx(0.0)
    assert explained_variance(returns, [2, 1, 2, 1]) == pytest.approx(1.0)
    assert explained_variance(returns, [2, 1, 2, 1], centred=False) == pytest.approx(-3.0)
    assert math.isnan(explained_variance([1, 1], [0, 1]))

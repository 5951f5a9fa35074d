"""Who gets the reward: advantages and critic targets from rewards and values. Pure numpy in float64.

Arrays are aligned with a segment's tokens: entry p is about token p, and ``values[p]`` is the critic's value of the
prefix *before* token p, which has seen everything up to token p - 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmgym.trajectory import Segment

Floats = NDArray[np.float64]
RewardOn = Literal["each_segment", "last_only"]


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """What an algorithm says about the tokens of one segment. A record of its own, never written into the trajectory.

    Both arrays are finite, and 0 wherever no policy sampled the token.
    """

    trajectory_id: str
    segment_index: int
    advantages: NDArray[np.float32]  # [T]
    returns: NDArray[np.float32]  # [T] critic targets; 0 when the algorithm has no critic
    trained_mask: NDArray[np.bool_] | None = None  # [T] tokens that train; None: all that the policy sampled
    copies: int = 1  # how many times the segment counts, as when it stands in for a failed member of its group

    def __post_init__(self) -> None:
        if self.advantages.shape != self.returns.shape:
            raise ValueError(f"{self.name}: {len(self.advantages)} advantages, {len(self.returns)} returns")
        if self.copies < 1:
            raise ValueError(f"{self.name}: copies={self.copies}; leave the credit out instead")
        if not (np.isfinite(self.advantages).all() and np.isfinite(self.returns).all()):
            raise ValueError(f"{self.name}: an advantage or a return is not finite")

    @property
    def name(self) -> str:
        return f"trajectory {self.trajectory_id} segment {self.segment_index}"


def split_by_segment(per_token: Floats, segments: Sequence[Segment]) -> list[NDArray[np.float32]]:
    """Cut an array over all tokens of a trajectory into float32 arrays over the tokens of each segment."""
    ends = np.cumsum([len(segment) for segment in segments])
    return [part.astype(np.float32) for part in np.split(per_token, ends[:-1])]


def skip_observation_gae(
    values: ArrayLike,
    rewards: ArrayLike,
    sampled_mask: ArrayLike,
    *,
    gamma: float,
    lam: float,
    bootstrap: float = 0.0,
) -> Floats:
    """Generalised advantage estimation over the sampled tokens alone (SAO, equations 4-5).

    Observation tokens are bridged: one factor ``gamma * lam`` leads from the last token of an action to the first token
    of the next one, however long the observation between them, and the value just before that next action has already
    read the observation. A reward on an unsampled token belongs to the last sampled token before it.

    Args:
        values: [T] value of the prefix before each token; read at sampled positions only, elsewhere it may be NaN.
        rewards: [T] reward received when the token was appended.
        sampled_mask: [T] bool.
        bootstrap: value after the last sampled token: 0 if the episode ended there.

    Returns:
        [T] advantages in the unit of the reward, 0 where not sampled; all 0 if nothing was sampled.

    Raises:
        ValueError: lengths differ, gamma or lam is outside [0, 1], a reward or a value in use is not finite, or there
            is a reward before the first sampled token.
    """
    value, reward, mask = np.asarray(values, float), np.asarray(rewards, float), np.asarray(sampled_mask, bool)
    if not value.shape == reward.shape == mask.shape or mask.ndim != 1:
        raise ValueError(
            f"values {value.shape}, rewards {reward.shape} and mask {mask.shape} must be equally long rows"
        )
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ValueError(f"gamma and lam must lie in [0, 1], got {gamma} and {lam}")
    advantages = np.zeros(len(mask))
    at = np.flatnonzero(mask)
    earned = _earned(reward, at)
    if not (np.isfinite(value[at]).all() and np.isfinite(earned).all() and math.isfinite(bootstrap)):
        raise ValueError("a reward, the bootstrap or the value of a sampled token is not finite")
    advantage, value_next = 0.0, bootstrap
    # Plain floats: the recursion is sequential, and indexing numpy scalars would cost ten times as much.
    for position, v, r in zip(at[::-1].tolist(), value[at][::-1].tolist(), earned[::-1].tolist(), strict=True):
        advantage = (r + gamma * value_next - v) + gamma * lam * advantage
        advantages[position] = advantage
        value_next = v
    return advantages


def critic_targets(
    values: ArrayLike,
    rewards: ArrayLike,
    sampled_mask: ArrayLike,
    *,
    gamma: float,
    lam: float = 1.0,
    bootstrap: float = 0.0,
) -> Floats:
    """[T] lambda-returns, the critic's targets: the advantages of a scan of their own plus the values.

    SAO uses ``lam=1`` here (the Monte-Carlo return) whatever the policy uses. Arguments and errors as in
    ``skip_observation_gae``; 0 where not sampled.
    """
    advantages = skip_observation_gae(values, rewards, sampled_mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    return np.where(np.asarray(sampled_mask, bool), advantages + np.asarray(values, float), 0.0)


def adaptive_lambda(num_action_tokens: int, alpha: float) -> float:
    """``1 - 1 / (alpha * num_action_tokens)`` kept in [0, 1): longer trajectories look further (SAO; VAPO's form).

    Raises:
        ValueError: no action token, or ``alpha`` is not positive.
    """
    if num_action_tokens < 1 or not alpha > 0.0:
        raise ValueError(f"needs an action token and a positive alpha, got {num_action_tokens} and {alpha}")
    return min(max(1.0 - 1.0 / (alpha * num_action_tokens), 0.0), math.nextafter(1.0, 0.0))


def cross_segment_gae(
    values: Sequence[ArrayLike],
    masks: Sequence[ArrayLike],
    reward: float,
    *,
    gamma: float,
    lam: float,
    critic_lam: float = 1.0,
    factor: bool = True,
    reward_on: RewardOn = "each_segment",
) -> tuple[list[Floats], list[Floats]]:
    """Advantages and critic targets of the parts of one rollout that compaction cut (CompactionRL, equations 13-15).

    Each part is credited by itself, as if the rollout's reward came on its last trained token and nothing after it.
    Then its advantages, though not its targets, shrink by ``gamma * lam`` for each trained token of later parts. That
    is not the estimate over the parts joined together; only the reward's distance is the same.

    Args:
        values: one [T] per part, value of the prefix before each token; read at trained tokens only.
        masks: one [T] bool per part, its trained tokens; a part without any gets zeros and counts nothing.
        reward: of the rollout, the same for each part.
        lam: the policy's, the same for all parts: it belongs to the whole rollout's number of tokens.
        critic_lam: of the targets, which stay local: shrunk ones would fade into the values themselves.
        factor: whether later parts shrink the advantages; off is an ablation.
        reward_on: every part's last trained token, or that of the last part only, an ablation.

    Returns:
        For each part [T] advantages and [T] targets, both 0 where not trained.

    Raises:
        ValueError: as ``skip_observation_gae``.
    """
    advantages: list[Floats] = []
    targets: list[Floats] = []
    num_after = 0
    for value, mask in reversed(list(zip(values, masks, strict=True))):
        at = np.flatnonzero(np.asarray(mask, bool))
        rewards = np.zeros(len(np.asarray(mask)))
        if len(at) and (reward_on == "each_segment" or num_after == 0):
            rewards[at[-1]] = reward
        scale = _power(gamma * lam, num_after) if factor else 1.0
        advantages.append(scale * skip_observation_gae(value, rewards, mask, gamma=gamma, lam=lam))
        targets.append(critic_targets(value, rewards, mask, gamma=gamma, lam=critic_lam))
        num_after += len(at)
    return advantages[::-1], targets[::-1]


def has_signal(credits: Sequence[Credit]) -> bool:
    """Whether a group's advantages say anything: False when all are 0, as in a group of equal rewards."""
    return any(bool(credit.advantages.any()) for credit in credits)


def group_mean_advantage(rewards: Sequence[float]) -> Floats:
    """[G] reward minus the mean reward of the group; no division by a deviation (GLM-5 report, section 4.1).

    Exactly 0 when all rewards are equal: a mean of equal numbers may differ from them in the last bit.

    Raises:
        ValueError: the group is empty or a reward is not finite: a failed rollout has no reward and no vote.
    """
    given = np.asarray(rewards, float)
    if not len(given) or not np.isfinite(given).all():
        raise ValueError(f"a baseline needs finite rewards, got {list(rewards)}")
    return np.zeros_like(given) if (given == given[0]).all() else given - given.mean()


def group_scaled_advantage(rewards: Sequence[float], *, ddof: int, eps: float = 0.0) -> Floats:
    """[G] as ``group_mean_advantage``, divided by the group's standard deviation (GLM-5 report, equation 1).

    A group of equal rewards, one of a single member among them, gets exactly 0: never a division by 0.

    Args:
        ddof: 0 divides the sum of squares by G, 1 by G - 1.
        eps: added to the deviation.

    Raises:
        ValueError: as ``group_mean_advantage``.
    """
    centred = group_mean_advantage(rewards)
    if not centred.any():
        return centred
    return centred / (np.asarray(rewards, float).std(ddof=ddof) + eps)


class RunningMean:
    """A baseline without a critic or a group: the mean of the last ``window`` rewards of the same key.

    It is what SAO's critic is compared with (table 4 there: the last 8 rewards of a prompt).

    Raises:
        ValueError: ``window`` < 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"a running mean needs a window of at least 1, got {window}")
        self._window = window
        self._seen: dict[str, deque[float]] = {}

    def advantage(self, key: str, reward: float) -> float:
        """Reward minus the mean of those seen before, then seen itself; the first of a key has a baseline of 0.

        Raises:
            ValueError: the reward is not finite: a failed rollout has none.
        """
        if not math.isfinite(reward):
            raise ValueError(f"{key}: a baseline needs finite rewards, got {reward}")
        seen = self._seen.setdefault(key, deque(maxlen=self._window))
        baseline = sum(seen) / len(seen) if seen else 0.0
        seen.append(reward)
        return reward - baseline


def fill_group(valid: Sequence[bool]) -> list[int]:
    """Members that train in place of a group: the valid ones, repeated in turn up to the group's size.

    Empty unless *more than half* of the group is valid (GLM-5 report, section 4.1; strict).
    """
    good = [index for index, is_valid in enumerate(valid) if is_valid]
    if 2 * len(good) <= len(valid):
        return []
    return [good[k % len(good)] for k in range(len(valid))]


def explained_variance(returns: ArrayLike, values: ArrayLike, *, centred: bool = True) -> float:
    """How much of the returns' variance the critic explains: 1 is perfect, 0 is a constant, NaN if nothing varies.

    ``centred`` is ``1 - Var(returns - values) / Var(returns)`` and forgives a constant bias of the critic; otherwise
    ``1 - mean((returns - values)**2) / Var(returns)``, which does not.
    """
    target = np.asarray(returns, float)
    error = target - np.asarray(values, float)
    spread = float(target.var()) if len(target) else 0.0
    if spread == 0.0:
        return math.nan
    return 1.0 - float(error.var() if centred else np.square(error).mean()) / spread


def _power(base: float, exponent: int) -> float:
    """``base ** exponent`` for a base in [0, 1], by logarithms: tiny numbers become 0 and nothing overflows."""
    if exponent == 0:
        return 1.0
    return math.exp(exponent * math.log(base)) if base > 0.0 else 0.0


def _earned(rewards: Floats, at: NDArray[np.intp]) -> Floats:
    """[len(at)] the reward of each sampled position, with what fell on unsampled tokens moved back to it."""
    paid = np.flatnonzero(rewards)
    owner = np.searchsorted(at, paid, side="right") - 1
    if len(at) and (owner < 0).any():
        raise ValueError(f"the reward at token {int(paid[0])} comes before the first sampled token, at {int(at[0])}")
    earned = np.zeros(len(at))
    if len(at):
        np.add.at(earned, owner, rewards[paid])
    return earned

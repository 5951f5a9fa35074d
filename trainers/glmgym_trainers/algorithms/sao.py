"""SAO: single-rollout asynchronous optimisation (arXiv 2607.07508). One attempt per task, a critic, the DIS loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.actor_critic import ActorCritic, CriticSettings, prefix_values
from glmgym_trainers.algorithms.algorithm import Extra, Forward, LossOut
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, adaptive_lambda, critic_targets, skip_observation_gae, split_by_segment


class SaoSettings(CriticSettings, BandSettings):
    """Published values where there are any (SAO, section 4.1, coding); the others are ours and say so."""

    name: Literal["sao"] = "sao"
    length: Literal["action", "response"] = "action"  # tokens the adaptive lambda counts: not disclosed; ours
    truncation: Literal["reward", "bootstrap"] = "reward"  # not disclosed; "bootstrap" adds the final prefix's value


class Sao(ActorCritic):
    """Skip-Observation GAE with a length-adaptive lambda for the policy, plain returns for the critic.

    A trajectory of several segments is one sequence of actions: the change of context between two segments is bridged
    like an observation.
    """

    Settings = SaoSettings
    name = "sao"

    def __init__(self, settings: SaoSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Advantages and critic targets of every segment of every trajectory that has a reward and an action.

        Raises:
            GlmgymError: a trajectory was not graded, or the critic's values for one of its segments are missing.
        """
        return [
            credit for each in group if each.outcome.is_valid and each.num_sampled for credit in self._of(each, extra)
        ]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        return band_loss(self.settings, forward, batch)

    def _of(self, trajectory: Trajectory, extra: Extra) -> list[Credit]:
        own, outcome, segments = self.settings, trajectory.outcome, trajectory.segments
        prefixes = [prefix_values(extra, trajectory, index) for index in range(len(segments))]
        values = np.concatenate([prefix[:-1] for prefix in prefixes])
        mask = np.concatenate([segment.sampled_mask for segment in segments])
        may_bootstrap = own.truncation == "bootstrap" and outcome.stop.is_truncated
        rewards = np.zeros(len(mask))
        # The reward arrives at the very end, usually on an observation: the scan moves it back to the last action.
        rewards[-1] = 0.0 if may_bootstrap and not outcome.rewards else outcome.total()
        bootstrap = float(prefixes[-1][-1]) if may_bootstrap else 0.0
        lam = adaptive_lambda(trajectory.num_sampled if own.length == "action" else _response(trajectory), own.alpha)
        advantages = skip_observation_gae(values, rewards, mask, gamma=own.gamma, lam=lam, bootstrap=bootstrap)
        targets = critic_targets(values, rewards, mask, gamma=own.gamma, lam=own.critic_lam, bootstrap=bootstrap)
        pairs = zip(split_by_segment(advantages, segments), split_by_segment(targets, segments), strict=True)
        return [Credit(trajectory.id, index, a, r) for index, (a, r) in enumerate(pairs)]


def _response(trajectory: Trajectory) -> int:
    """Tokens from each segment's first sampled one to its end, observations included."""
    masks = [segment.sampled_mask for segment in trajectory.segments]
    return sum(len(mask) - int(mask.argmax()) for mask in masks if mask.any())

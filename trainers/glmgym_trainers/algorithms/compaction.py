"""CompactionRL (arXiv 2607.05378): one attempt cut into segments by its own summaries, all of them trained together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmgym.trajectory import Segment, SpanKind, Trajectory
from glmgym_trainers.algorithms.actor_critic import ActorCritic, CriticSettings, prefix_values
from glmgym_trainers.algorithms.algorithm import Extra, Forward, LossOut
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.algorithms.clip import ClipSettings, clipped_loss
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, RewardOn, adaptive_lambda, cross_segment_gae


class CompactionRlSettings(CriticSettings, ClipSettings, BandSettings):
    """Published values where there are any (CompactionRL, section 4.1); the band serves the objective "dis" only."""

    name: Literal["compaction"] = "compaction"
    value_warmup: int = Field(50, ge=0)  # first steps, in which the critic alone learns; published
    eps_low: float = Field(0.2, ge=0, lt=1)  # not disclosed; ours
    eps_high: float = Field(0.2, ge=0)  # not disclosed; ours
    objective: Literal["ppo", "dis"] = "ppo"  # published: the clipped surrogate; how GLM-5.2 combines it is not
    old: Literal["trainer", "rollout"] = "trainer"  # whose log-probs the clip compares with: not disclosed; slime's
    train_summary: bool = True  # off: summaries leave the loss and every count of tokens; an ablation
    cross_segment_factor: bool = True  # equation 14; off is an ablation
    segment_reward_mode: RewardOn = "each_segment"  # where the shared reward is paid; "last_only" is an ablation


class CompactionRl(ActorCritic):
    """Cross-segment GAE: each part is credited with the whole reward, shrunk by what was sampled after it.

    A recorded segment holds actions and, if it was compacted, the summary at its end. The two are parts of their own:
    the paper's execution and summary segments. A sequence of ``reduction = "seq_mean"`` is a recorded segment.
    """

    Settings = CompactionRlSettings
    name = "compaction"

    def __init__(self, settings: CompactionRlSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.uses_old_logprobs = settings.objective == "ppo" and settings.old == "trainer"

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Advantages and critic targets of every segment with a token to train.

        Raises:
            GlmgymError: a trajectory was not graded, or the critic's values for one of its segments are missing.
        """
        return [credit for each in group if each.outcome.is_valid for credit in self._of(each, extra)]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        if self.settings.objective == "dis":
            return band_loss(self.settings, forward, batch)
        old = batch.rollout_logprobs if self.settings.old == "rollout" else forward.old_logprobs
        return clipped_loss(self.settings, forward, batch, old_logprobs=old)

    def _of(self, trajectory: Trajectory, extra: Extra) -> list[Credit]:
        own = self.settings
        kinds = (SpanKind.ACTION, SpanKind.SUMMARY) if own.train_summary else (SpanKind.ACTION,)
        parts = [
            (index, mask)
            for index, segment in enumerate(trajectory.segments)
            for mask in (_of_kind(segment, kind) for kind in kinds)
            if mask.any()
        ]
        if not parts:
            return []
        owners = sorted({index for index, _ in parts})
        values = {index: prefix_values(extra, trajectory, index)[:-1] for index in owners}
        masks = [mask for _, mask in parts]
        per_part = cross_segment_gae(
            [values[index] for index, _ in parts],
            masks,
            trajectory.outcome.total(),
            gamma=own.gamma,
            # One lambda for all parts, from the length of them all: only then is the reward's distance exact.
            lam=adaptive_lambda(sum(int(mask.sum()) for mask in masks), own.alpha),
            critic_lam=own.critic_lam,
            factor=own.cross_segment_factor,
            reward_on=own.segment_reward_mode,
        )
        columns = {index: np.zeros((3, len(values[index]))) for index in owners}
        for (index, mask), advantages, targets in zip(parts, *per_part, strict=True):
            columns[index] += (advantages, targets, mask)  # parts of one segment share no token
        return [
            Credit(trajectory.id, index, a.astype(np.float32), r.astype(np.float32), trained > 0)
            for index, (a, r, trained) in columns.items()
        ]


def _of_kind(segment: Segment, kind: SpanKind) -> NDArray[np.bool_]:
    return np.concatenate([np.full(len(span), span.kind is kind) for span in segment.spans])

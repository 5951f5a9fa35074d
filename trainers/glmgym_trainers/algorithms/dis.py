"""Asynchronous group DIS: the agentic RL of the GLM-5 report (sections 3.3, 4.1). Group mean baseline, no critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Extra, Forward, LossOut
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, fill_group, group_mean_advantage
from glmgym_trainers.losses import DisForm, dis_loss


class DisSettings(Settings):
    """The GLM-5 report gives the form but none of the numbers; the band is SAO's for coding, the rest is ours."""

    low: float = Field(0.2, gt=0, lt=1)  # bound of the ratio itself; SAO section 4.1, coding
    high: float = Field(4.0, gt=1)  # bound of the ratio itself; SAO section 4.1, coding
    form: DisForm = "detached"  # not disclosed; the two have the same gradient
    group_size: int = Field(8, ge=1)  # ours
    fill: Literal["repeat", "none"] = "repeat"  # GLM-5 repeats valid attempts in place of failed ones
    baseline: Literal["originals", "filled"] = "originals"  # mean over which list: not disclosed; ours
    max_staleness: int = Field(4, ge=0)  # versions; ours


class Dis:
    """Every sampled token of an attempt gets its reward minus the group's mean reward."""

    name = "dis"
    uses_critic = False

    def __init__(self, settings: DisSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size
        self.max_staleness = settings.max_staleness

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Nothing unless more than half of the group is valid. A failed attempt has no credit and no vote.

        Raises:
            GlmgymError: an attempt was not graded.
        """
        members = fill_group([each.outcome.is_valid for each in group])
        if not members:
            return []
        originals = list(dict.fromkeys(members))
        voters = originals if self.settings.baseline == "originals" else members
        trained = members if self.settings.fill == "repeat" else originals
        reward = {index: group[index].outcome.total() for index in originals}
        baseline = float(np.mean([reward[index] for index in voters]))
        return [credit for index in trained for credit in _spread(group[index], reward[index] - baseline)]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own = self.settings
        return LossOut(
            *dis_loss(
                forward.logprobs,
                batch.rollout_logprobs,
                batch.advantages,
                batch.sampled_mask,
                low=own.low,
                high=own.high,
                num_tokens=batch.num_tokens,
                form=own.form,
            )
        )


def _spread(trajectory: Trajectory, advantage: float) -> list[Credit]:
    """The same advantage on every sampled token of every segment."""
    return [
        Credit(trajectory.id, index, np.where(segment.sampled_mask, advantage, 0.0).astype(np.float32), nothing)
        for index, segment in enumerate(trajectory.segments)
        for nothing in [np.zeros(len(segment), np.float32)]
    ]

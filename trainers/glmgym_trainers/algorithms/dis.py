"""Asynchronous group DIS: the agentic RL of the GLM-5 report (sections 3.3, 4.1). Group mean baseline, no critic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, fill_group, group_mean_advantage


class DisSettings(BandSettings):
    """The GLM-5 report gives the form but none of the numbers; the band is SAO's for coding, the rest is ours."""

    name: Literal["dis"] = "dis"
    group_size: int = Field(8, ge=1)  # ours
    fill: Literal["repeat", "none"] = "repeat"  # GLM-5 repeats valid attempts in place of failed ones
    baseline: Literal["originals", "filled"] = "originals"  # mean over which list: not disclosed; ours


class Dis(Algorithm):
    """Every sampled token of an attempt gets its reward minus the group's mean reward."""

    Settings = DisSettings
    name = "dis"

    def __init__(self, settings: DisSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size

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
        rewards = [group[index].outcome.total() for index in voters]
        advantage = dict(zip(voters, group_mean_advantage(rewards).tolist(), strict=True))
        copies = Counter(members if self.settings.fill == "repeat" else originals)
        return [credit for index in originals for credit in _spread(group[index], advantage[index], copies[index])]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        return band_loss(self.settings, forward, batch)


def _spread(trajectory: Trajectory, advantage: float, copies: int) -> list[Credit]:
    """The same advantage on every sampled token of every segment."""
    credits = []
    for index, segment in enumerate(trajectory.segments):
        advantages = np.where(segment.sampled_mask, advantage, 0.0).astype(np.float32)
        credits.append(Credit(trajectory.id, index, advantages, np.zeros_like(advantages), copies=copies))
    return credits

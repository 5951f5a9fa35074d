"""Asynchronous group DIS: the agentic RL of the GLM-5 report (sections 3.3, 4.1). Group mean baseline, no critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.algorithms.group import GroupSettings, group_credit
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.reductions import Reduction


class DisSettings(GroupSettings, BandSettings):
    """The GLM-5 report gives the form but none of the numbers; the band is SAO's for coding, the rest is ours."""

    name: Literal["dis"] = "dis"
    reduction: Reduction = "token_mean"  # not disclosed; ours, and CompactionRL's


class Dis(Algorithm):
    """Every sampled token of an attempt gets its reward minus the group's mean reward."""

    Settings = DisSettings
    name = "dis"

    def __init__(self, settings: DisSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size
        self.reduction = settings.reduction

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """See ``group_credit``."""
        return group_credit(self.settings, group)

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        return band_loss(self.settings, forward, batch)

"""GRPO with IcePop: the reasoning RL of the GLM-5 report (section 3.2). Groups, no critic, no divergence penalty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.clip import ClipSettings, IcePopSettings, clipped_loss, icepop_weight
from glmgym_trainers.algorithms.group import GroupSettings, group_credit
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.reductions import Reduction


class GrpoSettings(GroupSettings, ClipSettings, IcePopSettings):
    """The values of the GLM-5 report, section 3.2, where it prints them."""

    name: Literal["grpo"] = "grpo"
    group_size: int = Field(32, ge=1)  # attempts of one task; GLM-5 section 3.2
    scale: Literal["none", "std"] = "std"  # GLM-5 equation 1
    reduction: Reduction = "seq_mean"  # GLM-5 equation 1


class Grpo(Algorithm):
    """Rewards against the group's, in deviations; the clipped surrogate, weighted by trainer against engine."""

    Settings = GrpoSettings
    name = "grpo"
    uses_old_logprobs = True

    def __init__(self, settings: GrpoSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size
        self.reduction = settings.reduction

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """See ``group_credit``."""
        return group_credit(self.settings, group)

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        return clipped_loss(self.settings, forward, batch, correction=icepop_weight(self.settings, forward, batch))

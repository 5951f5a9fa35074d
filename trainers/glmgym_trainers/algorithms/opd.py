"""OPD: on-policy cross-stage distillation (GLM-5 report, section 3.5). The teacher takes the place of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.clip import ClipSettings, IcePopSettings, clipped_loss, icepop_weight
from glmgym_trainers.algorithms.teacher import TeacherSettings, taught_credit
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.distillation import teacher_advantages


class OpdSettings(TeacherSettings, ClipSettings, IcePopSettings):
    """The GLM-5 report replaces the advantage of its equation 1 and keeps the rest of it, numbers included."""

    name: Literal["opd"] = "opd"
    coef: float = Field(1.0, gt=0)  # of the teacher's advantage; slime's default
    a_max: float = Field(20.0, gt=0)  # nats; the report prints no clip: only a guard against excluded tokens, ours


class Opd(Algorithm):
    """Each sampled token's advantage is the teacher's log-prob minus the student's, where the update started.

    It stays as it was computed there over all mini-batches of a batch.
    """

    Settings = OpdSettings
    name = "opd"
    uses_old_logprobs = True
    uses_teacher = True

    def __init__(self, settings: OpdSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size
        self.reduction = settings.reduction

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """See ``taught_credit``."""
        return taught_credit(self.settings, group, extra, top_k=self.teacher_top_k)

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own = self.settings
        assert batch.teacher_logprobs is not None  # credit() refused trajectories without
        taught, sums = teacher_advantages(
            batch.teacher_logprobs, forward.old_logprobs, batch.trained_mask, a_max=own.a_max, coef=own.coef
        )
        weight, weight_sums = icepop_weight(own, forward, batch)
        return clipped_loss(
            own, forward, batch, advantages=batch.advantages + taught, correction=(weight, sums | weight_sums)
        )

"""MOPD: multi-teacher on-policy distillation (arXiv 2606.30406), by sampled tokens or by the teacher's likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.clip import IcePopSettings, icepop_weight
from glmgym_trainers.algorithms.teacher import TeacherSettings, taught_credit
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.distillation import teacher_advantages, top_k_divergence
from glmgym_trainers.losses import pg_loss


class MopdSettings(TeacherSettings, IcePopSettings):
    """The values of the MOPD paper. The band serves ``correction = "icepop"`` only."""

    name: Literal["mopd"] = "mopd"
    form: Literal["pg", "topk"] = "pg"  # sampled tokens (equation 4) or the teacher's likeliest ones (equation 5)
    a_max: float = Field(5.0, gt=0)  # nats, of the form "pg"
    k: int = Field(64, ge=-1)  # the teacher's likeliest tokens, of the form "topk"; -1 for the whole vocabulary
    correction: Literal["none", "icepop"] = "none"  # weight for stale tokens: the paper is on-policy, NeMo-RL has it

    @field_validator("k")
    @classmethod
    def _some(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must be at least 1, or -1 for the whole vocabulary")
        return value


class Mopd(Algorithm):
    """The score function with the teacher's clipped advantage, or a divergence over the teacher's likeliest tokens.

    The task's advantage, if it counts, trains the sampled tokens beside either.
    """

    Settings = MopdSettings
    name = "mopd"
    uses_old_logprobs = True
    uses_teacher = True

    def __init__(self, settings: MopdSettings) -> None:
        self.settings = settings
        self.group_size = settings.group_size
        self.reduction = settings.reduction
        self.teacher_top_k = settings.k if settings.form == "topk" else 0

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """See ``taught_credit``."""
        return taught_credit(self.settings, group, extra, top_k=self.teacher_top_k)

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own, mask = self.settings, batch.trained_mask
        weight, weight_sums = icepop_weight(own, forward, batch) if own.correction == "icepop" else (None, {})
        if own.form == "pg":
            assert batch.teacher_logprobs is not None  # credit() refused trajectories without
            taught, sums = teacher_advantages(batch.teacher_logprobs, forward.old_logprobs, mask, a_max=own.a_max)
            loss, pg_sums = pg_loss(forward.logprobs, batch.advantages + taught, mask, batch.weights, correction=weight)
            return LossOut(loss, pg_sums | sums | weight_sums)
        assert forward.top_logprobs is not None
        assert batch.teacher_top_logprobs is not None
        weights = batch.weights if weight is None else batch.weights * weight
        task_loss, _ = pg_loss(forward.logprobs, batch.advantages, mask, batch.weights, correction=weight)
        loss, sums = top_k_divergence(
            forward.top_logprobs, batch.teacher_top_logprobs, weights.expand(mask.shape)[batch.trained_at()]
        )
        return LossOut(loss + task_loss, sums | weight_sums)

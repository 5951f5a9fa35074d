"""The clipped surrogate that most algorithms share, and the IcePop weight on it: their settings and a batch's loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from torch import Tensor

from glmgym.settings import Settings
from glmgym_trainers.algorithms.algorithm import Forward, LossOut
from glmgym_trainers.batch import Batch
from glmgym_trainers.importance import importance_weight
from glmgym_trainers.losses import ppo_loss


class ClipSettings(Settings):
    """Distances from 1 of the ratio between the policy and its old self."""

    eps_low: float = Field(0.2, ge=0, lt=1)  # GLM-5 section 3.2
    eps_high: float = Field(0.28, ge=0)  # GLM-5 section 3.2
    dual_clip: float | None = Field(None, gt=1)  # holds the ratio of negative advantages below this; slime's, off there


class IcePopSettings(Settings):
    """Tokens on which trainer and engine disagree too much do not train; the others count by their ratio."""

    beta: float = Field(2.0, ge=1)  # the band is 1/beta to beta, closed; GLM-5 section 3.2
    band: tuple[float, float] | None = None  # low and high in place of beta; the original IcePop: [0.5, 5.0]
    weight_mode: Literal["ratio", "mask"] = "ratio"  # what a token within the band counts: its ratio (GLM-5), or 1

    @field_validator("band")
    @classmethod
    def _around_one(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 <= value[0] <= 1 <= value[1]:
            raise ValueError("needs 0 <= low <= 1 <= high")
        return value


def icepop_weight(own: IcePopSettings, forward: Forward, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The constant weight of each token from old trainer against rollout engine (GLM-5 report, equation 1)."""
    low, high = own.band or (1 / own.beta, own.beta)
    return importance_weight(
        forward.old_logprobs, batch.rollout_logprobs, batch.trained_mask, low=low, high=high, mode=own.weight_mode
    )


def clipped_loss(
    own: ClipSettings,
    forward: Forward,
    batch: Batch,
    *,
    old_logprobs: Tensor | None = None,
    advantages: Tensor | None = None,
    correction: tuple[Tensor, dict[str, Tensor]] | None = None,
) -> LossOut:
    """The clipped surrogate of a batch; the old log-probs are the trainer's and the advantages the credit's by default.

    ``correction`` is a weight and its sums, which join those of the loss.
    """
    weight, weight_sums = correction or (None, {})
    loss, sums = ppo_loss(
        forward.logprobs,
        forward.old_logprobs if old_logprobs is None else old_logprobs,
        batch.advantages if advantages is None else advantages,
        batch.trained_mask,
        batch.weights,
        eps_low=own.eps_low,
        eps_high=own.eps_high,
        dual_clip=own.dual_clip,
        correction=weight,
    )
    return LossOut(loss, sums | weight_sums)

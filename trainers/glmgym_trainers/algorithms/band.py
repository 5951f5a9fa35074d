"""The trust band that the asynchronous algorithms share: its settings, and the DIS loss of a batch under them."""

from __future__ import annotations

from pydantic import Field

from glmgym.settings import Settings
from glmgym_trainers.algorithms.algorithm import Forward, LossOut
from glmgym_trainers.batch import Batch
from glmgym_trainers.losses import DisForm, dis_loss


class BandSettings(Settings):
    """Bounds of the ratio itself, not distances from 1. The GLM-5 report prints none; these are SAO's for coding."""

    low: float = Field(0.2, gt=0, lt=1)  # SAO section 4.1; 0.7 for mathematics
    high: float = Field(4.0, gt=1)  # SAO section 4.1; 6.0 for mathematics
    form: DisForm = "detached"  # not disclosed; the two have the same gradient


def band_loss(band: BandSettings, forward: Forward, batch: Batch) -> LossOut:
    """The DIS loss of a batch."""
    loss, sums = dis_loss(
        forward.logprobs,
        batch.rollout_logprobs,
        batch.advantages,
        batch.trained_mask,
        batch.weights,
        low=band.low,
        high=band.high,
        form=band.form,
    )
    return LossOut(loss, sums)

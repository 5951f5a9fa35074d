"""Imitation: the policy learns to say what the environment's oracle said, before any reward is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.reductions import Reduction


class ImitationSettings(Settings):
    """Of the warm-up that comes before reinforcement; everything else is the trainer's."""

    name: Literal["imitation"] = "imitation"
    reduction: Reduction = "token_mean"  # of the cross-entropy; every token counts the same


class Imitation(Algorithm):
    """Cross-entropy of the demonstrated turns; prompts and observations are context alone."""

    Settings = ImitationSettings
    name = "imitation"
    demonstrates = True

    def __init__(self, settings: ImitationSettings) -> None:
        self.settings = settings
        self.reduction = settings.reduction

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Every token that was said in a demonstration, at no advantage: there is nothing to compare it with."""
        return [
            Credit(each.id, index, np.zeros(len(segment), np.float32), np.zeros(len(segment), np.float32))
            for each in group
            if each.outcome.is_valid
            for index, segment in enumerate(each.segments)
        ]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        """The weighted sum of negative log-probs, in nats. No token is distrusted: the demonstrator is right."""
        surprise = -forward.logprobs.where(batch.trained_mask, 0.0)
        said = batch.trained_mask.sum()
        sums = {"policy/trusted_fraction": said, "imitation/cross_entropy": surprise.detach().sum()}
        return LossOut((surprise * batch.weights).sum(), sums)

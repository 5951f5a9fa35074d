"""Algorithms that only serve as comparisons: a single rollout against a running mean, under several objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.algorithms.clip import ClipSettings, clipped_loss
from glmgym_trainers.algorithms.group import spread
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, RunningMean
from glmgym_trainers.losses import pg_loss

Objective = Literal["dis", "unbounded", "none", "clip"]


class RunningMeanSettings(BandSettings, ClipSettings):
    """How the ratio of the policy to the one that sampled enters the loss.

    ``dis`` drops tokens outside the band; ``unbounded`` multiplies by the ratio whatever it is; ``none`` leaves it out;
    ``clip`` is PPO's clipped surrogate with the rollout's log-probs as the old ones.
    """

    objective: Objective = "dis"
    window: int = Field(128, ge=1)  # rewards; SAO's online simulation uses 128


class RunningMeanRl(Algorithm):
    """Reward minus the mean of the latest rewards of all tasks: fresh tasks have no history of their own."""

    name = "running_mean"
    group_size = 1

    def __init__(self, settings: RunningMeanSettings) -> None:
        self.settings = settings
        self._baseline = RunningMean(settings.window)

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """The same advantage on every token. Not pure: the baseline remembers."""
        return [
            credit for each in group for credit in spread(each, self._baseline.advantage("all", each.outcome.total()))
        ]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own = self.settings
        match own.objective:
            case "dis":
                return band_loss(own, forward, batch)
            case "unbounded":
                # As far as float32 carries: a ratio of e^20 has long ceased to be a correction.
                return band_loss(own.model_copy(update={"low": 2e-9, "high": 4.8e8}), forward, batch)
            case "none":
                return LossOut(*pg_loss(forward.logprobs, batch.advantages, batch.trained_mask, batch.weights))
            case "clip":
                return clipped_loss(own, forward, batch, old_logprobs=batch.rollout_logprobs)

"""What algorithms with a critic share: its settings, its loss, and the values it gave for a trajectory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from glmgym.errors import GlmgymError
from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, LossOut
from glmgym_trainers.batch import Batch
from glmgym_trainers.critic import FREEZE
from glmgym_trainers.losses import value_loss
from glmgym_trainers.reductions import Reduction


class CriticSettings(Settings):
    """The critic, and how its values become advantages."""

    gamma: float = Field(1.0, ge=0, le=1)  # not disclosed; ours
    alpha: float = Field(1.5, gt=0)  # of the policy's adaptive lambda, 1 - 1 / (alpha * length); SAO and CompactionRL
    critic_lam: float = Field(1.0, ge=0, le=1)  # lambda of the critic's targets; SAO, not disclosed for CompactionRL
    critic_updates: int = Field(2, ge=1)  # per policy update; SAO section 4.1 and CompactionRL
    value_warmup: int = Field(10, ge=0)  # first steps, in which the critic alone learns; the actor's rest is ours
    freeze: tuple[str, ...] = FREEZE  # parts of the names of critic parameters that stay fixed: attention; SAO
    value_clip: float | None = Field(None, gt=0)  # not disclosed; off is ours, slime has 0.2
    reduction: Reduction = "token_mean"  # CompactionRL equation 12; not disclosed for SAO


class ActorCritic(Algorithm):
    """One attempt per task, and a critic in place of a group."""

    group_size = 1
    uses_critic = True

    def __init__(self, settings: CriticSettings) -> None:
        self._value_clip = settings.value_clip
        self.reduction = settings.reduction
        self.critic_updates = settings.critic_updates
        self.value_warmup = settings.value_warmup
        self.freeze = settings.freeze

    def critic_loss(self, values: Tensor, batch: Batch) -> LossOut:
        """Squared error of ``values`` [B, T] against the batch's returns, which stay fixed over the repeats."""
        old = batch.old_values
        return LossOut(
            *value_loss(values, batch.returns, batch.trained_mask, batch.weights, clip=self._value_clip, old_values=old)
        )


def prefix_values(extra: Extra, trajectory: Trajectory, index: int) -> NDArray[np.float32]:
    """The critic's values of every prefix of a segment, [T + 1].

    Raises:
        GlmgymError: there are none, or not as many as the segment has prefixes.
    """
    values = extra.values.get((trajectory.id, index))
    expected = len(trajectory.segments[index]) + 1
    if values is None or len(values) != expected:
        got = "none" if values is None else len(values)
        raise GlmgymError(f"trajectory {trajectory.id} segment {index} needs {expected} prefix values, got {got}")
    return values

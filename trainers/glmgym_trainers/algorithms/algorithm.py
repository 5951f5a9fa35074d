"""The contract of an algorithm: a name and two pure things, credit for tokens and a loss over a batch.

The trainer does not know which algorithm it runs; an algorithm knows neither optimisers nor ranks nor padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glmgym.trajectory import Trajectory
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.losses import value_loss


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """What an algorithm may ask for beside the trajectories.

    ``values`` holds, by (trajectory id, segment index), the critic's value of every prefix: entry p of [T + 1] is the
    value of the first p tokens, so the last entry is where a truncated episode would go on.
    """

    values: Mapping[tuple[str, int], NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What the policy says about a batch now: [B, T] log-probs in nats of sampled tokens, with gradient."""

    logprobs: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossOut:
    """A scalar to differentiate, and detached sums that add up over micro-batches and ranks."""

    loss: Tensor
    sums: dict[str, Tensor]


class Algorithm(Protocol):
    """Two pure things and a name. The rest has defaults, which are those of an algorithm without a critic."""

    name: str
    group_size: int  # attempts of one task that get their credit together
    uses_critic: bool = False
    critic_updates: int = 0  # per policy update
    value_warmup: int = 0  # first steps, in which the critic alone learns
    freeze: tuple[str, ...] = ()  # parts of the names of critic parameters that stay fixed

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Credit for every segment of the group that should train; none for failed trajectories."""
        ...

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        """The policy's loss; ``dis/trusted`` among its sums counts the tokens that carry gradient."""
        ...

    def critic_loss(self, values: Tensor, batch: Batch) -> LossOut:
        """Mean squared error of ``values`` [B, T] against the batch's returns, which stay fixed over the repeats."""
        return LossOut(*value_loss(values, batch.returns, batch.sampled_mask, num_tokens=batch.num_tokens))

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

from glmgym.scoring import TeacherScore
from glmgym.trajectory import Trajectory
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.losses import value_loss
from glmgym_trainers.reductions import Reduction


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """What an algorithm may ask for beside the trajectories, by (trajectory id, segment index).

    ``values`` are the critic's of every prefix: entry p of [T + 1] is the value of the first p tokens, so the last
    entry is where a truncated episode would go on. ``teachers`` are the scores of each trajectory's own teacher.
    """

    values: Mapping[tuple[str, int], NDArray[np.float32]] = field(default_factory=dict)
    teachers: Mapping[tuple[str, int], TeacherScore] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What the policy says about a batch now: log-probs in nats of trained tokens, with gradient.

    ``old_logprobs`` are the trainer's own before the first update on this batch, without gradient. ``top_logprobs``
    belong to the teacher's likeliest tokens (``Batch.teacher_top_ids``), over the whole vocabulary. ``version`` is the
    policy's last published one.
    """

    logprobs: Tensor  # [B, T]
    old_logprobs: Tensor  # [B, T]
    top_logprobs: Tensor | None = None  # [N, k]
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LossOut:
    """A scalar to differentiate, and detached sums that add up over micro-batches and ranks.

    Each sum divided by the trained tokens of the global batch is a metric under its name.
    """

    loss: Tensor
    sums: dict[str, Tensor]


class Algorithm(Protocol):
    """Two pure things and a name. The rest has defaults, which are those of an algorithm without critic or teacher."""

    name: str
    group_size: int = 1  # attempts of one task that get their credit together
    reduction: Reduction = "token_mean"  # of the policy's loss and the critic's
    uses_old_logprobs: bool = False  # whether the loss looks at ``Forward.old_logprobs``
    uses_critic: bool = False
    critic_updates: int = 0  # per policy update
    value_warmup: int = 0  # first steps, in which the critic alone learns
    freeze: tuple[str, ...] = ()  # parts of the names of critic parameters that stay fixed
    uses_teacher: bool = False
    demonstrates: bool = False  # whether the attempts are the oracle's instead of the policy's own
    teacher_top_k: int = 0  # of the teacher's likeliest tokens; 0 for none, -1 for the whole vocabulary

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """Credit for every segment of the group that should train; none for failed trajectories."""
        ...

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        """The policy's loss; ``policy/trusted_fraction`` among its sums counts the tokens that carry gradient."""
        ...

    def critic_loss(self, values: Tensor, batch: Batch) -> LossOut:
        """Mean squared error of ``values`` [B, T] against the batch's returns, which stay fixed over the repeats."""
        return LossOut(*value_loss(values, batch.returns, batch.trained_mask, batch.weights))

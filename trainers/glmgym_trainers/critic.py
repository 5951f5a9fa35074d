"""The critic: the policy's own backbone, copied, with a scalar head. Owned by the trainer.

Its value at column p is that of the prefix before token p, so it is read from the state at p - 1, the same state that
predicts token p. Values are never divided by a sampling temperature.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from glmgym.trajectory import Trajectory
from glmgym_trainers import freezing
from glmgym_trainers.batch import Batch, Row, collate, micro_batches
from glmgym_trainers.sparse_attention import stabilise

FREEZE = ("self_attn",)  # SAO: the critic's attention is frozen, its (expert) projections are trained


class Critic(nn.Module):
    """A float32 copy of a causal language model's backbone and a value head that starts at 0.

    Args:
        model: the causal language model to start from; it is left alone.
        freeze: parts of parameter names; parameters whose name contains one of them are not trained.

    Raises:
        ConfigError: a freeze pattern matches no parameter of this architecture.
    """

    def __init__(self, model: Any, *, freeze: Sequence[str] = FREEZE) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(model.base_model).float()
        self.head = nn.Linear(model.config.hidden_size, 1)
        # From 0 every value starts at 0: the first advantages are plain returns, not noise of a random head.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        stabilise(self.backbone)
        freezing.freeze(self.backbone, freeze)

    def forward(self, batch: Batch) -> Tensor:
        """[B, T + 1] float32 value of every prefix: column p is the value of the first p tokens; column 0 is 0.

        Columns beyond a row's length mean nothing. Carries gradient.
        """
        out = self.backbone(input_ids=batch.token_ids, position_ids=batch.positions, use_cache=False)
        values: Tensor = self.head(out.last_hidden_state.float()).squeeze(-1)
        return nn.functional.pad(values, (1, 0))

    def values(self, batch: Batch) -> Tensor:
        """[B, T] float32: column p is the value of the prefix before token p. Carries gradient."""
        prefixes: Tensor = self(batch)
        return prefixes[:, :-1]


@torch.no_grad()
def score_prefixes(
    critic: Critic, trajectories: Iterable[Trajectory], *, max_tokens: int, device: torch.device | str = "cpu"
) -> dict[tuple[str, int], NDArray[np.float32]]:
    """Values of every prefix of every segment, [T + 1] by (trajectory id, segment index), in micro-batches."""
    rows = [Row.of(trajectory, index) for trajectory in trajectories for index in range(len(trajectory.segments))]
    scores = {}
    for group in micro_batches(rows, max_tokens=max_tokens):
        prefixes = critic(collate(group).to(device)).cpu().numpy()
        for row, values in zip(group, prefixes, strict=True):
            scores[row.trajectory_id, row.segment_index] = values[: len(row) + 1]
    return scores

"""From trajectories and credits to rectangular torch columns. Owned by the trainer; the only place padding exists.

Every column is aligned with the token it is about: column p holds token p, its rollout log-prob, its advantage. A
causal model predicts token p at position p - 1; the actor and the critic make that shift, nobody else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmgym.errors import CaptureError
from glmgym.trajectory import NO_VERSION, Trajectory
from glmgym_trainers.credit import Credit


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One segment ready for a batch. Without credit its advantages and returns are 0: enough for scoring."""

    trajectory_id: str
    segment_index: int
    token_ids: NDArray[np.int32]  # [T]
    sampled_mask: NDArray[np.bool_]  # [T]
    rollout_logprobs: NDArray[np.float32]  # [T]
    versions: NDArray[np.int32]  # [T]
    advantages: NDArray[np.float32]  # [T]
    returns: NDArray[np.float32]  # [T]

    @classmethod
    def of(cls, trajectory: Trajectory, segment_index: int, credit: Credit | None = None) -> Row:
        """Join a segment with its credit.

        Raises:
            CaptureError: the credit is for another segment or another number of tokens; names the trajectory.
        """
        segment = trajectory.segments[segment_index]
        if credit is None:
            nothing = np.zeros(len(segment), np.float32)
            credit = Credit(trajectory.id, segment_index, nothing, nothing)
        if (credit.trajectory_id, credit.segment_index) != (trajectory.id, segment_index):
            raise CaptureError(
                f"credit of {credit.name} was joined to trajectory {trajectory.id} segment {segment_index}"
            )
        if len(credit.advantages) != len(segment):
            raise CaptureError(f"{credit.name} has {len(segment)} tokens but credit for {len(credit.advantages)}")
        return cls(
            trajectory.id,
            segment_index,
            segment.token_ids,
            segment.sampled_mask,
            segment.logprobs,
            segment.versions,
            credit.advantages,
            credit.returns,
        )

    @property
    def num_sampled(self) -> int:
        return int(self.sampled_mask.sum())

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows padded on the right to one length. ``num_tokens`` counts the sampled tokens of the *global* batch.

    Padding is a token id like any other, never sampled: under causal attention no real token can see it.
    """

    token_ids: Tensor  # [B, T] int64
    positions: Tensor  # [B, T] int64, 0 at the first token of a row
    sampled_mask: Tensor  # [B, T] bool
    rollout_logprobs: Tensor  # [B, T] float32 nats
    versions: Tensor  # [B, T] int32, NO_VERSION where not sampled
    advantages: Tensor  # [B, T] float32
    returns: Tensor  # [B, T] float32
    num_tokens: int

    def sampled_at(self) -> tuple[Tensor, Tensor]:
        """Row and column of each sampled token, [N] each. The state that predicts it is at column - 1.

        A segment starts with an unsampled token, so that column is never negative.
        """
        rows, columns = self.sampled_mask.nonzero(as_tuple=True)
        return rows, columns

    def to(self, device: torch.device | str) -> Batch:
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "num_tokens"}
        return Batch(**moved, num_tokens=self.num_tokens)


def rows_of(trajectories: Iterable[Trajectory], credits: Iterable[Credit]) -> list[Row]:
    """One row per credit whose segment has a sampled token; a credit that appears twice trains twice.

    Raises:
        CaptureError: a credit is for an unknown trajectory or for a different number of tokens.
    """
    by_id = {trajectory.id: trajectory for trajectory in trajectories}
    rows = []
    for credit in credits:
        trajectory = by_id.get(credit.trajectory_id)
        if trajectory is None or credit.segment_index >= len(trajectory.segments):
            raise CaptureError(f"credit for {credit.name}, which is not in this batch")
        row = Row.of(trajectory, credit.segment_index, credit)
        if row.num_sampled:
            rows.append(row)
    return rows


def count_sampled(rows: Iterable[Row]) -> int:
    """Sampled tokens of these rows, at least 1: the denominator of a token mean, before the sum over ranks."""
    return max(1, sum(row.num_sampled for row in rows))


def collate(rows: Sequence[Row], *, num_tokens: int, pad_to: int = 0) -> Batch:
    """Pad rows to the longest of them, or to ``pad_to`` if that is more.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("a batch needs at least one row")
    width = max(pad_to, *(len(row) for row in rows))

    def column(name: str, dtype: torch.dtype, fill: float) -> Tensor:
        out = torch.full((len(rows), width), fill, dtype=dtype)
        for index, row in enumerate(rows):
            out[index, : len(row)] = torch.tensor(getattr(row, name), dtype=dtype)
        return out

    return Batch(
        token_ids=column("token_ids", torch.int64, 0),
        positions=torch.arange(width).repeat(len(rows), 1),
        sampled_mask=column("sampled_mask", torch.bool, False),
        rollout_logprobs=column("rollout_logprobs", torch.float32, 0.0),
        versions=column("versions", torch.int32, NO_VERSION),
        advantages=column("advantages", torch.float32, 0.0),
        returns=column("returns", torch.float32, 0.0),
        num_tokens=num_tokens,
    )


def micro_batches(rows: Sequence[Row], *, max_tokens: int) -> Iterator[list[Row]]:
    """Cut rows into lists that take at most ``max_tokens`` when padded, longest rows first so that little is padding.

    A single row longer than ``max_tokens`` gets a list of its own: a segment is never cut.
    """
    pending: list[Row] = []
    for row in sorted(rows, key=len, reverse=True):
        if pending and (len(pending) + 1) * len(pending[0]) > max_tokens:
            yield pending
            pending = []
        pending.append(row)
    if pending:
        yield pending

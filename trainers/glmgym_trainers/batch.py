"""From trajectories and credits to rectangular torch columns. Owned by the trainer; the only place padding exists.

Every column is aligned with the token it is about: column p holds token p, its rollout log-prob, its advantage. A
causal model predicts token p at position p - 1; the actor and the critic make that shift, nobody else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmgym.errors import CaptureError
from glmgym.scoring import TeacherScore
from glmgym.trajectory import NO_VERSION, Trajectory
from glmgym_trainers.credit import Credit


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One segment ready for a batch. Without credit its advantages and returns are 0: enough for scoring."""

    trajectory_id: str
    segment_index: int
    token_ids: NDArray[np.int32]  # [T]
    trained_mask: NDArray[np.bool_]  # [T] sampled by the policy, and not left out by the algorithm
    rollout_logprobs: NDArray[np.float32]  # [T]
    versions: NDArray[np.int32]  # [T]
    advantages: NDArray[np.float32]  # [T]
    returns: NDArray[np.float32]  # [T]
    copies: int = 1
    weight: float = 0.0  # what one trained token counts in the global batch; see ``reductions.weigh``
    old_logprobs: NDArray[np.float32] | None = None  # [T] the trainer's own, before the first update on this batch
    old_values: NDArray[np.float32] | None = None  # [T] the critic's, when the targets were made
    teacher: TeacherScore | None = None

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
        sampled = segment.sampled_mask
        trained = sampled if credit.trained_mask is None else credit.trained_mask
        if (trained & ~sampled).any():
            raise CaptureError(f"{credit.name} would train a token that no policy sampled")
        return cls(
            trajectory.id,
            segment_index,
            segment.token_ids,
            trained,
            segment.logprobs,
            segment.versions,
            credit.advantages,
            credit.returns,
            credit.copies,
        )

    @property
    def num_trained(self) -> int:
        return int(self.trained_mask.sum())

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows padded on the right to one length. ``weights`` hold the denominator of the *global* batch.

    Padding is a token id like any other, never trained: under causal attention no real token can see it. The teacher's
    columns exist when every row has a teacher's score, the columns of what an update started from when it asked.
    """

    token_ids: Tensor  # [B, T] int64
    positions: Tensor  # [B, T] int64, 0 at the first token of a row
    trained_mask: Tensor  # [B, T] bool
    rollout_logprobs: Tensor  # [B, T] float32 nats
    versions: Tensor  # [B, T] int32, NO_VERSION where not sampled
    advantages: Tensor  # [B, T] float32
    returns: Tensor  # [B, T] float32
    weights: Tensor  # [B, 1] float32: what one trained token of the row counts
    old_logprobs: Tensor | None = None  # [B, T] float32 nats
    old_values: Tensor | None = None  # [B, T] float32
    teacher_logprobs: Tensor | None = None  # [B, T] float32 nats
    teacher_top_ids: Tensor | None = None  # [N, k] int64, one row per trained token in the order of ``trained_at``
    teacher_top_logprobs: Tensor | None = None  # [N, k] float32 nats

    def trained_at(self) -> tuple[Tensor, Tensor]:
        """Row and column of each trained token, [N] each. The state that predicts it is at column - 1.

        A segment starts with an unsampled token, so that column is never negative.
        """
        rows, columns = self.trained_mask.nonzero(as_tuple=True)
        return rows, columns

    def to(self, device: torch.device | str) -> Batch:
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: None if c is None else c.to(device) for name, c in columns.items()}
        return Batch(**moved)


def rows_of(trajectories: Iterable[Trajectory], credits: Iterable[Credit]) -> list[Row]:
    """One row per credit whose segment has a token to train.

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
        if row.num_trained:
            rows.append(row)
    return rows


def collate(rows: Sequence[Row], *, pad_to: int = 0) -> Batch:
    """Pad rows to the longest of them, or to ``pad_to`` if that is more.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("a batch needs at least one row")
    width = max(pad_to, *(len(row) for row in rows))

    def padded(parts: Sequence[NDArray[Any]], dtype: torch.dtype, fill: float = 0.0) -> Tensor:
        out = torch.full((len(rows), width), fill, dtype=dtype)
        for index, part in enumerate(parts):
            out[index, : len(part)] = torch.tensor(part, dtype=dtype)
        return out

    def column(name: str, dtype: torch.dtype, fill: float = 0.0) -> Tensor:
        return padded([getattr(row, name) for row in rows], dtype, fill)

    def known(name: str) -> Tensor | None:
        parts = [part for row in rows if (part := getattr(row, name)) is not None]
        return padded(parts, torch.float32) if len(parts) == len(rows) else None

    teachers = [row.teacher for row in rows if row.teacher is not None]
    has_teacher = len(teachers) == len(rows)

    return Batch(
        token_ids=column("token_ids", torch.int64),
        positions=torch.arange(width).repeat(len(rows), 1),
        trained_mask=column("trained_mask", torch.bool),
        rollout_logprobs=column("rollout_logprobs", torch.float32),
        versions=column("versions", torch.int32, NO_VERSION),
        advantages=column("advantages", torch.float32),
        returns=column("returns", torch.float32),
        weights=torch.tensor([[row.weight] for row in rows], dtype=torch.float32),
        old_logprobs=known("old_logprobs"),
        old_values=known("old_values"),
        teacher_logprobs=padded([t.logprobs for t in teachers], torch.float32) if has_teacher else None,
        **(_top_columns(rows) if has_teacher and all(t.top_ids is not None for t in teachers) else {}),
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


def split_trajectories(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Share rows out into at most ``parts`` lists, in turn; the rows of one trajectory stay together."""
    owners = list(dict.fromkeys(row.trajectory_id for row in rows))
    part_of = {owner: index % parts for index, owner in enumerate(owners)}
    shares = [[row for row in rows if part_of[row.trajectory_id] == part] for part in range(parts)]
    return [share for share in shares if share]


def _top_columns(rows: Sequence[Row]) -> dict[str, Tensor]:
    """The teacher's best tokens at each trained token, rows one after the other."""
    ids, logprobs = [], []
    for row in rows:
        assert row.teacher is not None
        assert row.teacher.top_ids is not None
        assert row.teacher.top_logprobs is not None
        ids.append(row.teacher.top_ids[row.trained_mask])
        logprobs.append(row.teacher.top_logprobs[row.trained_mask])
    return {
        "teacher_top_ids": torch.tensor(np.concatenate(ids), dtype=torch.int64),
        "teacher_top_logprobs": torch.tensor(np.concatenate(logprobs), dtype=torch.float32),
    }

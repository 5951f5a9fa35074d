"""What one token counts in the loss: the named means over a global batch. Owned by the trainer.

A mean is a weight per row, set before the batch is cut into micro-batches or spread over ranks; the loss is then a
plain sum and cannot depend on the cut. The weights follow from what the algorithm set out to train, never from what a
trust band let through: a rejected token stays in the denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from glmgym_trainers.batch import Row

Reduction = Literal["token_mean", "seq_mean", "rollout_mean"]


def weigh(rows: Sequence[Row], reduction: Reduction) -> list[Row]:
    """The rows of one global batch with their weights; those of all trained tokens add up to 1.

    - ``token_mean``: every trained token counts the same (CompactionRL, equation 12).
    - ``seq_mean``: every segment counts the same, its tokens share that (GLM-5 report, equation 1; MOPD).
    - ``rollout_mean``: every trajectory counts the same, its tokens share that, whatever segments they are in (slime).

    A row of several copies counts as often. A row without a trained token gets the weight 0.
    """
    if reduction == "token_mean":
        total = sum(row.copies * row.num_trained for row in rows)
        return [replace(row, weight=row.copies / total if row.num_trained else 0.0) for row in rows]
    owners = [(row.trajectory_id, row.segment_index if reduction == "seq_mean" else 0) for row in rows]
    tokens = Counter[tuple[str, int]]()
    copies: dict[tuple[str, int], int] = {}
    for owner, row in zip(owners, rows, strict=True):
        if row.num_trained:
            tokens[owner] += row.num_trained
            copies[owner] = row.copies
    total = sum(copies.values())
    return [
        replace(row, weight=row.copies / (tokens[owner] * total) if row.num_trained else 0.0)
        for owner, row in zip(owners, rows, strict=True)
    ]

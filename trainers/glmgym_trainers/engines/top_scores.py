"""Log-probs of given tokens and the likeliest tokens beside them, from final hidden states, in blocks of rows.

Owned here: how a distribution becomes a ranking that two machines agree on, and how little of it exists at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from glmgym.engine import TopScores
from glmgym.errors import EngineFailure

BLOCK_BYTES = 32 << 20  # of float32 log-probs held at once


def score_states(
    hidden: Tensor,
    targets: Tensor,
    logits: Callable[[Tensor], Tensor],
    *,
    vocab_size: int,
    temperature: float,
    k: int,
    block_bytes: int = BLOCK_BYTES,
) -> TopScores:
    """Scores of ``targets`` under ``log_softmax(logits(hidden) / temperature)`` over the whole vocabulary.

    Args:
        hidden: [N, H] the state that predicts each target.
        targets: [N] int64.
        logits: from [n, H] to [n, V], in any precision; their softmax is in float32 at least.
        k: how many of the likeliest tokens; all for k < 0 or k > V.
        block_bytes: memory for the log-probs of one block of rows; a row is never cut.

    Raises:
        EngineFailure: a target's log-prob is not a number.
    """
    width = vocab_size if k < 0 else min(k, vocab_size)
    logprobs = np.empty(len(targets), np.float32)
    top_ids = np.empty((len(targets), width), np.int32)
    top_logprobs = np.empty((len(targets), width), np.float32)
    rows = max(1, block_bytes // (4 * vocab_size))
    for start in range(0, len(targets), rows):
        block = slice(start, start + rows)
        raw = logits(hidden[block])
        table = torch.log_softmax(raw.to(torch.promote_types(raw.dtype, torch.float32)) / temperature, dim=-1)
        logprobs[block] = table.gather(1, targets[block, None])[:, 0].numpy()
        ids = likeliest(table, width)
        top_ids[block] = ids.numpy()
        top_logprobs[block] = table.gather(1, ids).numpy()
    if np.isnan(logprobs).any():
        raise EngineFailure("the model's logits are not numbers; are its weights?")
    return TopScores(logprobs, top_ids, top_logprobs)


def likeliest(table: Tensor, k: int) -> Tensor:
    """[N, k] int64 ids of the largest entries of ``table`` [N, V], largest first, of equal ones the lowest id first.

    ``torch.topk`` alone picks equal entries in an order that depends on the machine.
    """
    if k == 0:
        return torch.empty(len(table), 0, dtype=torch.int64)
    values, ids = table.topk(k, dim=-1)
    least = values[:, -1:]
    is_cut = (table == least).sum(-1) > (values == least).sum(-1)  # between equal entries: which were taken is chance
    ids = ids.sort(dim=-1).values
    order = table.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    ids = ids.gather(1, order)
    if bool(is_cut.any()):
        ids[is_cut] = table[is_cut].sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return ids

"""Keys and values of every slot in one static tensor, and the two ways attention uses them.

A row is one slot. Decode attends for rows ``[0, n)`` at once, through views: no key is copied per step. Prefill writes
all new tokens at once and attends run by run, so that neither needs padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from glmgym_trainers.engines.glm4 import Attend


@dataclass(frozen=True, slots=True)
class Run:
    """New tokens of one row: ``token_ids`` follow the ``start`` tokens whose keys are there already."""

    row: int
    start: int
    token_ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class KVCache:
    """float32 keys and values, [layers, rows, kv_heads, context, D] each."""

    def __init__(self, *, layers: int, rows: int, kv_heads: int, context_length: int, head_dim: int) -> None:
        # Zeros, not empty: a masked key has weight 0, and 0 * NaN of uninitialised memory would be NaN.
        self._keys = torch.zeros(layers, rows, kv_heads, context_length, head_dim)
        self._values = torch.zeros_like(self._keys)
        self._kv_heads = kv_heads

    def clear(self) -> None:
        self._keys.zero_()
        self._values.zero_()

    def swap(self, a: int, b: int, width: int) -> None:
        """Exchange the first ``width`` tokens of rows ``a`` and ``b``."""
        for cache in (self._keys, self._values):
            held = cache[:, a, :, :width].clone()
            cache[:, a, :, :width] = cache[:, b, :, :width]
            cache[:, b, :, :width] = held

    def decode(self, positions: Tensor, width: int) -> Attend:
        """Attention of one new token per row ``0 .. n-1``, at ``positions`` ([n]), over the first ``width`` tokens."""
        n = len(positions)
        rows = torch.arange(n)
        visible = (torch.arange(width) <= positions[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer, :n], self._values[layer, :n]
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            # The query heads that share a key head stand where the query's length would: no key is repeated.
            grouped = q.unflatten(1, (self._kv_heads, -1))
            out = scaled_dot_product_attention(grouped, keys[:, :, :width], values[:, :, :width], attn_mask=visible)
            return out.flatten(1, 2)

        return attend

    def prefill(self, runs: Sequence[Run]) -> Attend:
        """Attention of packed runs, each over its own row's earlier tokens and its own new ones."""
        lengths = [len(run.token_ids) for run in runs]
        rows = torch.tensor([run.row for run in runs]).repeat_interleave(torch.tensor(lengths))
        positions = run_positions(runs)
        masks = [_causal(run) if run.start else None for run in runs]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            outs = [
                scaled_dot_product_attention(
                    part.transpose(0, 1)[None],
                    keys[None, run.row, :, : run.end],
                    values[None, run.row, :, : run.end],
                    attn_mask=mask,
                    is_causal=mask is None,
                    enable_gqa=True,
                )[0].transpose(0, 1)
                for run, mask, part in zip(runs, masks, q.split(lengths), strict=True)
            ]
            return torch.cat(outs)

        return attend


def run_positions(runs: Sequence[Run]) -> Tensor:
    """[N] int64: the position of every packed token in its own context."""
    return torch.cat([torch.arange(run.start, run.end) for run in runs])


def _causal(run: Run) -> Tensor:
    """[T, end] bool: the new token ``t`` sees everything up to position ``start + t``."""
    return torch.ones(len(run.token_ids), run.end, dtype=torch.bool).tril(run.start)

"""GLM-5's sparse attention, made repeatable: which keys its indexer picks must not depend on padding. Owned here alone.

The indexer's score is exactly 0 wherever no head fires, so ties at the last place kept are common, and plain
``topk`` resolves them by the row's length and layout: the same tokens in another batch then attend to other keys, and
log-probs differ by whole nats. A stable sort gives ties to the earlier key, in every engine that does the same. (GLM-5
report, Reasoning RL: with a top-k that is not deterministic, training degrades within a few steps.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer


def stable_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of the last dimension, largest first, ties by the lower index: values and int64 indices."""
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


class StableIndexer(GlmMoeDsaIndexer):
    """The library's indexer with ``stable_topk`` in place of its ``topk``."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with _StableTopK():
            return super().forward(*args, **kwargs)


def stabilise(model: nn.Module) -> None:
    """Turn every indexer of ``model`` into a ``StableIndexer``, in place; other architectures have none."""
    for module in model.modules():
        if type(module) is GlmMoeDsaIndexer:
            module.__class__ = StableIndexer  # its parameters stay what and where they are


class _StableTopK(TorchFunctionMode):
    """While entered, the method ``topk`` of any tensor is ``stable_topk`` over the last dimension."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.Tensor.topk:
            return torch.return_types.topk(stable_topk(*args))
        return function(*args, **(kwargs or {}))

"""Draw one token per row and report the log-prob of exactly the distribution drawn from.

Randomness is one uniform number per token, from the request's own seed: a token depends on its request alone, not on
who shares the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmgym.errors import EngineFailure


def uniform_draws(seed: int, n: int) -> NDArray[np.float64]:
    """[n] numbers in [0, 1). The first k do not depend on ``n``."""
    return np.random.Generator(np.random.PCG64(seed % 2**64)).random(n)


def sample(logits: Tensor, temperatures: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-transform sampling from ``softmax(logits / temperature)``.

    Args:
        logits: [B, V] float32.
        temperatures: [B] float32, above 0.
        draws: [B] float64 in [0, 1).

    Returns:
        [B] int64 token ids and [B] float32 log-probs in nats.

    Raises:
        EngineFailure: a logit is not a number.
    """
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    # float64: the cumulative sum of a large vocabulary must not lose the tail, nor the draw its resolution.
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    targets = draws[:, None] * cumulative[:, -1:]
    # right=True skips tokens of probability 0, whose cumulative value equals their predecessor's.
    token_ids = torch.searchsorted(cumulative, targets, right=True).clamp_max_(logits.shape[-1] - 1)
    chosen = logprobs.gather(1, token_ids)[:, 0]
    if not bool(torch.isfinite(chosen).all()):
        raise EngineFailure("the model's logits are not finite; are its weights?")
    return token_ids[:, 0], chosen

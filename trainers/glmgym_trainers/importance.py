"""Constant weights for tokens that another policy sampled: IcePop, truncated importance sampling, and their kin.

A weight says how much a token of one policy counts for another. It carries no gradient and multiplies an objective that
is already complete, a clipped one included. Owned by the trainer.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

WeightMode = Literal["ratio", "mask", "clamp"]

LARGEST_LOG_RATIO = 20.0  # nats; beyond it exp() is only noise, and soon infinite


def importance_weight(
    logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, low: float, high: float, mode: WeightMode
) -> tuple[Tensor, dict[str, Tensor]]:
    """How much each token counts, from the ratio of two policies' probabilities of it.

    - ``ratio``: the ratio within the closed band [low, high], 0 outside (IcePop; GLM-5 report, equation 1).
    - ``mask``: 1 within the closed band, 0 outside.
    - ``clamp``: the ratio moved into the band (truncated importance sampling, as slime does it).

    Args:
        logprobs: [...] of the policy the weight is for, nats; treated as constant.
        sampler_logprobs: [...] of the policy that sampled the tokens, nats; treated as constant.
        mask: [...] bool, tokens that train; elsewhere the weight is 0, whatever stands there.
        low: lower bound of the ratio itself, as an explicit number; 0 for none.
        high: upper bound of the ratio itself.

    Returns:
        [...] weights without gradient, and sums over trained tokens: ``weight/below_fraction``,
        ``weight/above_fraction`` (outside the band), ``weight/abs_log_ratio`` (nats).

    Raises:
        ValueError: not ``0 <= low <= 1 <= high``.
    """
    if not 0.0 <= low <= 1.0 <= high:
        raise ValueError(f"the band of a weight needs 0 <= low <= 1 <= high, got low={low}, high={high}")
    log_ratio = torch.where(mask, logprobs.detach() - sampler_logprobs.detach(), 0.0)
    floor, ceiling = math.log(low) if low else -math.inf, math.log(high)
    below, above = log_ratio < floor, log_ratio > ceiling
    ratio = log_ratio.clamp(floor, ceiling).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    if mode == "mask":
        ratio = torch.ones_like(ratio)
    kept = mask if mode == "clamp" else mask & ~below & ~above
    sums = {
        "weight/below_fraction": below.sum(),
        "weight/above_fraction": above.sum(),
        "weight/abs_log_ratio": log_ratio.abs().sum(),
    }
    return torch.where(kept, ratio, 0.0), sums


def interpolated_logprobs(logprobs: Tensor, sampler_logprobs: Tensor, versions: Tensor, version: int) -> Tensor:
    """The log-probs of the last published policy, guessed between the sampler's and the current ones (AReaL).

    A token of version ``v`` is ``version - v`` publications behind the published policy, and the policy now in training
    is one further: the guess lies ``(version - v) / (version + 1 - v)`` of the way. It saves the forward that would
    compute it.

    Args:
        logprobs: [...] of the policy in training, nats; treated as constant.
        sampler_logprobs: [...] of the policy that sampled each token, nats.
        versions: [...] int, the version that sampled each token; at most ``version``.

    Returns:
        [...] nats, without gradient.
    """
    lag = (version - versions).clamp(min=0).to(logprobs.dtype)
    return sampler_logprobs + lag / (lag + 1.0) * (logprobs.detach() - sampler_logprobs)

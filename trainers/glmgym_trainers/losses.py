"""The objectives as pure functions: tensors in, one scalar and detached sums out. Owned by the trainer.

Every function takes what each token counts in the *global* batch (``weights``; see ``reductions``), so that the losses
of micro-batches and ranks add up to the loss of the whole. The masks say which tokens train; what else drops a token (a
trust band, a clip) is decided here, for one step, and never written back. A value at a masked-out position may be
anything, NaN and infinity included: it reaches neither the loss nor a gradient.

The sums that come with a loss are over trained tokens, ready for a SUM reduction over micro-batches and ranks; divided
by the number of trained tokens each is the mean or the fraction that its name says. ``policy/trusted_fraction`` is
among them always: how many tokens carry gradient.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

DisForm = Literal["detached", "surrogate"]


def dis_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    low: float,
    high: float,
    form: DisForm = "detached",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Direct double-sided importance sampling (GLM-5 report, equations 3-5; SAO, equations 1-3).

    A token trains only while ``low < ratio < high`` (open interval), whatever the sign of its advantage; outside the
    band it adds neither value nor gradient, yet stays in the denominator. Both forms have the gradient
    ``-weight * ratio * advantage`` with respect to a trusted token's log-prob and differ in value only: "detached"
    multiplies a constant ratio by the log-prob, as the papers write it; "surrogate" lets the ratio carry the gradient.

    Args:
        logprobs: [...] current policy, carries gradient, nats.
        rollout_logprobs: [...] engine values at sampling time, nats; treated as constant.
        advantages: [...] treated as constant.
        mask: [...] bool, tokens that train.
        weights: broadcastable to [...]; 1 / tokens of the global batch for a token mean.
        low: lower bound of the ratio itself, as an explicit number (``1 - 0.8`` is not ``0.2`` in floating point).
        high: upper bound of the ratio itself.

    Returns:
        The scalar loss, connected to the graph even when nothing is trusted, and detached sums:
        ``policy/trusted_fraction``, ``dis/below_fraction``, ``dis/above_fraction``, ``dis/abs_log_ratio``, ``dis/k3``
        (the last estimates the divergence of the current policy from the rollout's).

    Raises:
        ValueError: not ``0 < low < 1 < high``.
    """
    if not 0.0 < low < 1.0 < high:
        raise ValueError(f"the trust band needs 0 < low < 1 < high, got low={low}, high={high}")
    log_ratio = torch.where(mask, logprobs - rollout_logprobs.detach(), 0.0)
    # Tested in log space: exp() of a rejected token may overflow, and 0 * inf is a NaN gradient.
    below = mask & (log_ratio <= math.log(low))
    above = mask & (log_ratio >= math.log(high))
    trusted = mask & (log_ratio > math.log(low)) & (log_ratio < math.log(high))
    ratio = torch.where(trusted, log_ratio, 0.0).exp()
    weight = torch.where(trusted, advantages.detach(), 0.0)
    if form == "detached":
        per_token = ratio.detach() * weight * torch.where(trusted, logprobs, 0.0)
    else:
        per_token = torch.where(trusted, ratio * weight, 0.0)
    seen = log_ratio.detach()
    metrics = {
        "policy/trusted_fraction": trusted.sum(),
        "dis/below_fraction": below.sum(),
        "dis/above_fraction": above.sum(),
        "dis/abs_log_ratio": seen.abs().sum(),
        "dis/k3": (seen.clamp(-20.0, 20.0).exp() - 1.0 - seen).sum(),
    }
    return -(weights * per_token).sum(), metrics


def value_loss(
    values: Tensor,
    returns: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    clip: float | None = None,
    old_values: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted squared error of the critic, without a factor one half (SAO, preliminaries).

    With ``clip``, the larger of the plain error and the error of a value kept within ``clip`` of its old one (the form
    slime uses, default 0.2 there; SAO does not mention it).

    Args:
        values: [...] carries gradient.
        returns: [...] targets, treated as constant.
        mask: [...] bool, tokens that train.
        weights: broadcastable to [...]; 1 / tokens of the global batch for a token mean.
        old_values: [...] the values when the targets were made; needed by ``clip`` only.

    Returns:
        The scalar loss and detached sums: ``value/count``, ``value/squared_error``, and the sums ``value/return``,
        ``value/return_squared``, ``value/error`` from which the explained variance of a global batch follows.

    Raises:
        ValueError: ``clip`` without ``old_values``.
    """
    targets = torch.where(mask, returns.detach(), 0.0).to(values.dtype)
    error = torch.where(mask, values - targets, 0.0)
    squared = error.square()
    if clip is not None:
        if old_values is None:
            raise ValueError("a value clip needs the old values")
        old = torch.where(mask, old_values.detach(), 0.0)
        held = old + (torch.where(mask, values, 0.0) - old).clamp(-clip, clip)
        squared = torch.maximum(squared, torch.where(mask, held - targets, 0.0).square())
    metrics = {
        "value/count": mask.sum(),
        "value/squared_error": error.detach().square().sum(),
        "value/error": error.detach().sum(),
        "value/return": targets.sum(),
        "value/return_squared": targets.square().sum(),
    }
    return (weights * squared).sum(), metrics

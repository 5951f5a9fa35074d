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

from glmgym_trainers.importance import LARGEST_LOG_RATIO, importance_weight

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


def ppo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
    correction: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate ``min(r A, clip(r, 1 - eps_low, 1 + eps_high) A)``, times a constant weight if given.

    With ``correction`` from ``importance_weight`` it is the objective of the GLM-5 report (equation 1): the weight
    multiplies what is already clipped and never enters the minimum, where it would change which side is clipped.

    Args:
        logprobs: [...] current policy, carries gradient, nats.
        old_logprobs: [...] policy before the first update on this batch, nats; treated as constant.
        advantages: [...] treated as constant.
        mask: [...] bool, tokens that train.
        weights: broadcastable to [...]; see ``reductions``.
        eps_low: how far below 1 a ratio of a negative advantage still trains.
        eps_high: how far above 1 a ratio of a positive advantage still trains.
        dual_clip: for negative advantages, the ratio above which a token's part stays constant; above 1.
        correction: [...] constant weight of each token.

    Returns:
        The scalar loss and detached sums: ``policy/trusted_fraction``, ``clip/positive_fraction``,
        ``clip/negative_fraction`` (clipped tokens by the sign of their advantage), ``clip/abs_log_ratio``.

    Raises:
        ValueError: not ``0 <= eps_low < 1``, ``eps_high < 0``, or ``dual_clip`` is not above 1.
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    surrogate, clipped = _clipped_surrogate(log_ratio, advantages, mask, eps_low, eps_high, dual_clip)
    kept = mask
    if correction is not None:
        surrogate = torch.where(mask, correction.detach(), 0.0) * surrogate
        kept = mask & (correction != 0)
    return -(weights * surrogate).sum(), _clip_sums(clipped, kept, advantages, mask, log_ratio)


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    eps_low: float,
    eps_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate with one ratio per sequence: the geometric mean over its trained tokens (GSPO).

    A sequence is a row. All its tokens share the ratio, and are clipped or kept together; with the weights of a
    sequence mean the loss is the mean over sequences of ``min(s A, clip(s) A)``.

    Args:
        logprobs: [B, T] current policy, carries gradient, nats.
        old_logprobs: [B, T] policy before the first update on this batch, nats; treated as constant.
        advantages: [B, T] treated as constant; one value per row in GSPO itself.
        mask: [B, T] bool, tokens that train.
        weights: broadcastable to [B, T].
        eps_low: as in ``ppo_loss``, and so are the sums and errors.
        eps_high: as in ``ppo_loss``.
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    counts = mask.sum(-1, keepdim=True).clamp(min=1)
    shared = (log_ratio.sum(-1, keepdim=True) / counts).expand_as(log_ratio)
    surrogate, clipped = _clipped_surrogate(shared, advantages, mask, eps_low, eps_high, None)
    return -(weights * surrogate).sum(), _clip_sums(clipped, mask, advantages, mask, log_ratio)


def pg_loss(
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    correction: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The score function ``-advantage * log p``, times a constant weight if given. No ratio, no clip.

    Args:
        logprobs: [...] current policy, carries gradient, nats.
        advantages: [...] treated as constant.
        mask: [...] bool, tokens that train.
        weights: broadcastable to [...]; see ``reductions``.
        correction: [...] constant weight of each token.

    Returns:
        The scalar loss and detached sums: ``policy/trusted_fraction``.
    """
    scale = torch.where(mask, advantages.detach(), 0.0)
    kept = mask
    if correction is not None:
        scale = scale * torch.where(mask, correction.detach(), 0.0)
        kept = mask & (correction != 0)
    per_token = scale * torch.where(kept, logprobs, 0.0)
    return -(weights * per_token).sum(), {"policy/trusted_fraction": kept.sum()}


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    *,
    low: float,
    high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The score function times the ratio, which is clamped and constant: every token keeps its gradient (CISPO).

    Args:
        logprobs: [...] current policy, carries gradient, nats.
        old_logprobs: [...] policy the ratio is taken to, nats; treated as constant.
        advantages: [...] treated as constant.
        mask: [...] bool, tokens that train.
        weights: broadcastable to [...]; see ``reductions``.
        low: least ratio, as an explicit number; 0 for none.
        high: largest ratio.

    Returns:
        The scalar loss and the sums of ``pg_loss`` and ``importance_weight``.
    """
    ratio, weight_sums = importance_weight(logprobs, old_logprobs, mask, low=low, high=high, mode="clamp")
    loss, sums = pg_loss(logprobs, advantages, mask, weights, correction=ratio)
    return loss, sums | weight_sums


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


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, eps_low: float, eps_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of each token, 0 where not trained, and which tokens are held constant by the clip."""
    if not (0.0 <= eps_low < 1.0 and eps_high >= 0.0 and (dual_clip is None or dual_clip > 1.0)):
        raise ValueError(
            f"a clip needs 0 <= eps_low < 1, eps_high >= 0 and dual_clip > 1, got {eps_low}, {eps_high} and {dual_clip}"
        )
    scale = torch.where(mask, advantages.detach(), 0.0)
    # The minimum of the two surrogates is one surrogate whose ratio is held from above or from below, by the sign.
    ratio = log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    bad = scale < 0
    most = torch.full_like(ratio, 1.0 + eps_high).masked_fill(bad, math.inf if dual_clip is None else dual_clip)
    least = torch.zeros_like(ratio).masked_fill(bad, 1.0 - eps_low)
    clipped = (ratio > most) | (ratio < least) | (log_ratio.abs() > LARGEST_LOG_RATIO)
    held = torch.minimum(torch.maximum(ratio.detach(), least), most)
    return torch.where(clipped, held, ratio) * scale, clipped


def _clip_sums(clipped: Tensor, kept: Tensor, advantages: Tensor, mask: Tensor, log_ratio: Tensor) -> dict[str, Tensor]:
    return {
        "policy/trusted_fraction": (kept & ~clipped).sum(),
        "clip/positive_fraction": (mask & clipped & (advantages > 0)).sum(),
        "clip/negative_fraction": (mask & clipped & (advantages < 0)).sum(),
        "clip/abs_log_ratio": log_ratio.detach().abs().sum(),
    }

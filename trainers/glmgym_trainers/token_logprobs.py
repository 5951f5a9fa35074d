"""Log-probs of chosen tokens from hidden states, without ever holding a [tokens, vocabulary] tensor.

The vocabulary is walked in blocks, and the walk is repeated in the backward pass instead of keeping what it computed:
one more matrix product buys the memory of three logit tensors. Walking the vocabulary rather than the tokens means that
each block of the weight's gradient is written once, by one large product. Owned by the trainer; knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_BYTES = 8 << 20  # of logits held at once; about a processor's last-level cache share, so that passes stay in it
_MIN_COLUMNS = 128  # below this the matrix products become narrow and slow


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, block_bytes: int = BLOCK_BYTES
) -> Tensor:
    """``log_softmax(hidden @ weight.T / temperature)`` at ``targets``.

    Args:
        hidden: [N, H] final hidden states, carries gradient.
        weight: [V, H] output embedding, carries gradient.
        targets: [N] int64 in [0, V), or [N, K] for several tokens of each distribution.
        temperature: of the distribution the tokens were sampled from.
        block_bytes: memory for one block of logits.

    Returns:
        [N] or [N, K] nats, float32 (float64 for float64 inputs), also when the inputs are bfloat16.

    Raises:
        ValueError: shapes disagree, a target is outside the vocabulary, or ``temperature`` is not positive.
    """
    logprobs, _ = _apply(hidden, weight, targets, temperature, block_bytes, with_entropy=False)
    return logprobs


def token_logprobs_and_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, block_bytes: int = BLOCK_BYTES
) -> tuple[Tensor, Tensor]:
    """As ``token_logprobs``, with the entropy [N] of each distribution in nats; both carry gradient."""
    return _apply(hidden, weight, targets, temperature, block_bytes, with_entropy=True)


def _apply(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, block_bytes: int, *, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    are_states = hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1]
    if not are_states or targets.ndim not in (1, 2) or targets.shape[:1] != hidden.shape[:1]:
        raise ValueError(
            f"want hidden [N, H], weight [V, H] and targets [N] or [N, K], "
            f"got {tuple(hidden.shape)}, {tuple(weight.shape)} and {tuple(targets.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if targets.numel() and not (int(targets.min()) >= 0 and int(targets.max()) < len(weight)):
        raise ValueError(f"a target lies outside the vocabulary of {len(weight)}")
    chosen = targets if targets.ndim == 2 else targets[:, None]
    logprobs, entropy = _BlockedLogprobs.apply(hidden, weight, chosen, 1.0 / temperature, block_bytes, with_entropy)
    return logprobs.view(targets.shape), entropy


class _BlockedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, block_bytes: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        scaled = _accumulating(hidden) * scale
        # A running maximum, with the sum of exp(logit - top) and of (logit - top) * exp(logit - top) relative to it.
        top = scaled.new_full((len(scaled),), torch.finfo(scaled.dtype).min)
        total = torch.zeros_like(top)
        moment = torch.zeros_like(top)
        chosen = scaled.new_zeros(targets.shape)
        for start, block, logits in _blocks(scaled, weight, block_bytes):
            torch.mm(scaled, block.T, out=logits)
            column, inside = _columns(targets, start, len(block))
            chosen = torch.where(inside, logits.gather(1, column), chosen)
            new_top = torch.maximum(top, logits.amax(1))
            logits.sub_(new_top[:, None])
            decay = (top - new_top).exp()
            if with_entropy:
                centred = logits.clone()
                logits.exp_()
                moment = decay * (moment + (top - new_top) * total) + centred.mul_(logits).sum(1)
            else:
                logits.exp_()
            total = decay * total + logits.sum(1)
            top = new_top
        log_total = top + total.log()
        entropy = total.log() - moment / total if with_entropy else torch.zeros_like(top)
        ctx.save_for_backward(hidden, weight, targets, log_total, entropy)
        ctx.scale, ctx.block_bytes, ctx.with_entropy = scale, block_bytes, with_entropy
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return chosen - log_total[:, None], entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_total, entropy = ctx.saved_tensors
        scaled = _accumulating(hidden) * ctx.scale
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        grad_scaled = torch.zeros_like(scaled) if want_hidden else None
        grad_weight = torch.empty_like(weight) if want_weight else None
        grad_total = grad_logprobs.sum(1)
        for start, block, logits in _blocks(scaled, weight, ctx.block_bytes):
            torch.mm(scaled, block.T, out=logits)
            grad = logits.sub_(log_total[:, None])
            # d logprob / d logit = onehot - p;  d entropy / d logit = -p * (log p + entropy)
            if ctx.with_entropy:
                slope = grad.add(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_total[:, None])
                grad.exp_().mul_(slope.neg_())
            else:
                grad.exp_().mul_(grad_total.neg()[:, None])
            column, inside = _columns(targets, start, len(block))
            grad.scatter_add_(1, column, torch.where(inside, grad_logprobs, 0.0))
            if grad_scaled is not None:
                grad_scaled.addmm_(grad, block)
            if grad_weight is not None:
                grad_weight[start : start + len(block)] = grad.T @ scaled
        grad_hidden = None if grad_scaled is None else grad_scaled.mul_(ctx.scale).to(hidden.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _columns(targets: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each target lies in the block from ``start`` on, [N, K], and which of them do; the others point at 0."""
    inside = (targets >= start) & (targets < start + width)
    return torch.where(inside, targets - start, 0), inside


def _blocks(scaled: Tensor, weight: Tensor, block_bytes: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """First token id, rows of the weight, and an uninitialised [N, columns] buffer that every block shares."""
    rows = max(len(scaled), 1)
    columns = min(len(weight), max(_MIN_COLUMNS, block_bytes // (rows * scaled.element_size())))
    buffer = scaled.new_empty(len(scaled) * columns)
    for start in range(0, len(weight), columns):
        block = weight[start : start + columns].to(scaled.dtype)
        yield start, block, buffer[: len(scaled) * len(block)].view(len(scaled), len(block))


def _accumulating(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

"""Blocked log-probs equal the naive ones, in value, gradient and entropy, and keep no [tokens, vocabulary] tensor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glmgym_trainers.token_logprobs import token_logprobs, token_logprobs_and_entropy

ONE_BLOCK = 1 << 30
MANY_BLOCKS = 1  # the smallest blocks there are: 128 columns


def problem(n: int, hidden: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(n, hidden, generator=generator, dtype=torch.float64).to(dtype)
    w = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(dtype)
    return h.requires_grad_(), w.requires_grad_(), torch.randint(vocab, (n,), generator=generator)


def naive(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = (hidden @ weight.T / temperature).log_softmax(-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(1)


def test_two_tokens_by_hand() -> None:
    """Logits (0, log 3): probabilities 1/4 and 3/4; at temperature 1/2 they are 1/10 and 9/10."""
    hidden, weight = torch.ones(2, 1), torch.tensor([[0.0], [math.log(3)]])
    targets = torch.tensor([0, 1])
    assert token_logprobs(hidden, weight, targets).exp().tolist() == pytest.approx([0.25, 0.75])
    assert token_logprobs(hidden, weight, targets, temperature=0.5).exp().tolist() == pytest.approx([0.1, 0.9])
    _, entropy = token_logprobs_and_entropy(hidden, weight, targets)
    assert entropy.tolist() == pytest.approx([-0.25 * math.log(0.25) - 0.75 * math.log(0.75)] * 2)


@pytest.mark.parametrize("block_bytes", [ONE_BLOCK, MANY_BLOCKS])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients_equal_the_naive_path(
    block_bytes: int, temperature: float, dtype: torch.dtype, tolerance: float
) -> None:
    """A vocabulary of 300 is blocks of 128, 128 and 44; both outputs get an arbitrary upstream gradient."""
    hidden, weight, targets = problem(7, 5, 300, dtype)
    up = torch.linspace(-1, 2, 7, dtype=dtype), torch.linspace(1, -1, 7, dtype=dtype)
    want = naive(hidden, weight, targets, temperature)
    got = token_logprobs_and_entropy(hidden, weight, targets, temperature=temperature, block_bytes=block_bytes)
    want_grads = torch.autograd.grad(want, (hidden, weight), up)
    got_grads = torch.autograd.grad(got, (hidden, weight), up)
    for a, b in zip((*got, *got_grads), (*want, *want_grads), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
    only = token_logprobs(hidden, weight, targets, temperature=temperature, block_bytes=block_bytes)
    torch.testing.assert_close(only, want[0], atol=tolerance, rtol=tolerance)
    want_grads = torch.autograd.grad(naive(hidden, weight, targets, temperature)[0], (hidden, weight), up[0])
    for a, b in zip(torch.autograd.grad(only, (hidden, weight), up[0]), want_grads, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def test_gradient_equals_finite_differences() -> None:
    hidden, weight, targets = problem(3, 2, 130, torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs_and_entropy(h, w, targets, temperature=1.3, block_bytes=MANY_BLOCKS),
        (hidden, weight),
    )


def test_large_logits_neither_overflow_nor_vanish() -> None:
    """Logits of +-1000: certain tokens have log-prob 0, impossible ones -2000, whichever block holds the maximum."""
    weight = torch.full((300, 1), -1000.0)
    for best in (0, 299):
        weight[best] = 1000.0
        got = token_logprobs(torch.ones(2, 1), weight, torch.tensor([best, 150]), block_bytes=MANY_BLOCKS)
        assert got.tolist() == [0.0, -2000.0]
        weight[best] = -1000.0


def test_bfloat16_inputs_are_accumulated_in_float32() -> None:
    """The result is the float32 one of the same numbers; a bfloat16 log-softmax would be off by up to 3 %."""
    hidden, weight, targets = problem(7, 16, 300, torch.bfloat16)
    got = token_logprobs(hidden, weight, targets, block_bytes=MANY_BLOCKS)
    want, _ = naive(hidden.float(), weight.float(), targets, 1.0)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    grads = torch.autograd.grad(got.sum(), (hidden, weight))
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.bfloat16]
    for a, b in zip(grads, torch.autograd.grad(want.sum(), (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)


def test_nothing_of_the_size_of_the_logits_is_kept_for_backward() -> None:
    """64 tokens of a vocabulary of 1000: what waits for backward is smaller than one row of logits per token."""
    hidden, weight, targets = problem(64, 4, 1000, torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        token_logprobs(hidden, weight, targets)
    own = sum(t.numel() for t in kept if t.data_ptr() not in (hidden.data_ptr(), weight.data_ptr()))
    assert kept
    assert own <= 4 * 64


def test_a_frozen_side_gets_no_gradient_and_an_empty_selection_works() -> None:
    hidden, weight, targets = problem(3, 2, 10, torch.float32)
    token_logprobs(hidden, weight.detach(), targets).sum().backward()
    assert hidden.grad is not None
    nothing = token_logprobs(hidden[:0], weight, targets[:0]).sum()
    assert nothing.item() == 0.0
    (grad,) = torch.autograd.grad(nothing, weight)
    assert not grad.any()


@pytest.mark.parametrize("target", [-1, 10])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    with pytest.raises(ValueError, match="vocabulary of 10"):
        token_logprobs(torch.ones(1, 2), torch.ones(10, 2), torch.tensor([target]))


def test_bad_shapes_and_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match="want hidden"):
        token_logprobs(torch.ones(1, 2), torch.ones(10, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.ones(1, 2), torch.ones(10, 2), torch.tensor([0]), temperature=0.0)

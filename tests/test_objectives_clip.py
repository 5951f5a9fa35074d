"""Clipped and weighted objectives: published vectors, both sides of every border, gradients by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glmgym_trainers.importance import WeightMode, importance_weight, interpolated_logprobs
from glmgym_trainers.losses import cispo_loss, gspo_loss, pg_loss, ppo_loss

CLIP = {"eps_low": 0.2, "eps_high": 0.28}
# Algorithm specification 4.6: four tokens and the coding band as distances from 1.
LP = [-0.5, -2.0, -1.0, -3.0]
LP_ROLL = [-0.7, -1.5, -3.0, -1.2]
ADVANTAGES = [1.0, -1.0, 2.0, 0.5]

# Algorithm specification 3.4: two attempts of 2 and 3 tokens, advantages 1 and -1.
RATIO = [[1.3, 1.0, 1.0], [0.7, 1.1, 1.0]]
RHO = [[1.0, 2.5, 1.0], [1.2, 0.8, 1.0]]
MASK = torch.tensor([[True, True, False], [True, True, True]])
SEQ_MEAN = torch.tensor([[1 / 4], [1 / 6]], dtype=torch.float64)


def row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def on(values: list[float]) -> Tensor:
    return torch.ones(len(values)) > 0


def weight(ratios: list[float], low: float, high: float, mode: WeightMode) -> list[float]:
    weights, _ = importance_weight(
        row(ratios).log(), torch.zeros(len(ratios)), on(ratios), low=low, high=high, mode=mode
    )
    return weights.tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("ratio", [0, 0.5, 1, 2, 0]), ("mask", [0, 1, 1, 1, 0]), ("clamp", [0.5, 0.5, 1, 2, 2])],
)
def test_three_uses_of_a_closed_band(mode: WeightMode, expected: list[float]) -> None:
    """3.4: rho = [.49, .5, 1, 2, 2.01], b = 2: both bounds themselves are inside."""
    assert weight([0.49, 0.5, 1, 2, 2.01], 0.5, 2.0, mode) == pytest.approx(expected)


def test_a_band_need_not_be_symmetric_nor_have_a_lower_bound() -> None:
    """The original IcePop's band is [0.5, 5]; slime's truncated weight has no lower bound."""
    assert weight([0.49, 4.9, 5.1], 0.5, 5.0, "ratio") == pytest.approx([0, 4.9, 0])
    assert weight([1e-3, 3.0], 0.0, 2.0, "clamp") == pytest.approx([1e-3, 2.0])
    with pytest.raises(ValueError, match="0 <= low <= 1 <= high"):
        weight([1.0], 1.1, 2.0, "ratio")


def test_weights_are_constant_and_counted() -> None:
    """No gradient reaches either policy; one token below, one above, and the masked one in no sum."""
    logprobs = row([math.log(0.4), math.log(3.0), 0.0, math.nan]).requires_grad_()
    mask = torch.tensor([True, True, True, False])
    weights, sums = importance_weight(logprobs, torch.zeros(4), mask, low=0.5, high=2.0, mode="ratio")
    assert not weights.requires_grad
    assert weights.tolist() == [0, 0, 1, 0]
    assert {name: float(value) for name, value in sums.items()} == {
        "weight/below_fraction": 1, "weight/above_fraction": 1,
        "weight/abs_log_ratio": pytest.approx(math.log(3) - math.log(0.4)),
    }  # fmt: skip


def icepop(weights: Tensor | float) -> tuple[float, Tensor, dict[str, Tensor]]:
    rho, ratio = (torch.tensor(values, dtype=torch.float64) for values in (RHO, RATIO))
    old = rho.log()
    logprobs = (old + ratio.log()).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    correction, _ = importance_weight(old, torch.zeros(2, 3), MASK, low=0.5, high=2.0, mode="ratio")
    loss, sums = ppo_loss(logprobs, old, advantages, MASK, weights, **CLIP, correction=correction)
    (grad,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), grad, sums


def test_the_whole_icepop_objective() -> None:
    """3.4: surrogates [1.28, 0] and [-.96, -.88, -1]; dividing by the kept tokens would give -0.1666666667."""
    loss, grad, sums = icepop(SEQ_MEAN)
    assert loss == pytest.approx(0.1533333333)
    assert icepop(1 / 5)[0] == pytest.approx(0.312)
    assert grad.flatten().tolist() == pytest.approx([0, 0, 0, 0, 0.88 / 6, 1 / 6])
    names = ("policy/trusted_fraction", "clip/positive_fraction", "clip/negative_fraction")
    assert [int(sums[name]) for name in names] == [2, 1, 1]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.27, 1.0, 1.27, 1.27), (1.29, 1.0, 1.28, 0.0), (0.5, 1.0, 0.5, 0.5),
        (0.81, -1.0, -0.81, -0.81), (0.79, -1.0, -0.8, 0.0), (2.9, -1.0, -2.9, -2.9), (3.1, -1.0, -3.0, 0.0),
    ],
)  # fmt: skip
def test_the_clip_holds_one_side_of_each_sign(ratio: float, advantage: float, value: float, slope: float) -> None:
    """Section 11: eps .2/.28, dual clip 3 for negative advantages; the slope is in log p, ratio times advantage."""
    logprobs = row([math.log(ratio)]).requires_grad_()
    loss, sums = ppo_loss(logprobs, row([0.0]), row([advantage]), on([1]), 1.0, **CLIP, dual_clip=3.0)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert (-loss.item(), -grad.item()) == (pytest.approx(value), pytest.approx(slope))
    assert int(sums["policy/trusted_fraction"]) == (slope != 0.0)


def test_without_a_dual_clip_a_bad_token_has_no_upper_bound() -> None:
    loss, _ = ppo_loss(row([math.log(50)]), row([0.0]), row([-1.0]), on([1]), 1.0, **CLIP)
    assert loss.item() == pytest.approx(50)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda *a: ppo_loss(*a, 1 / 4, eps_low=0.8, eps_high=3.0), [-0.3053506895, 0.1516326649, 0, -0.0206623610]),
        (lambda *a: cispo_loss(*a, 1 / 4, low=0.2, high=4.0), [-0.3053506895, 0.1516326649, -2.0, -0.025]),
    ],
)
def test_ppo_and_cispo_on_the_tokens_of_the_dis_vector(
    loss: Callable[..., tuple[Tensor, object]], expected: list[float]
) -> None:
    """4.6: PPO keeps the low ratio of a positive advantage, CISPO keeps everything at a clamped weight."""
    logprobs = row(LP).requires_grad_()
    (grad,) = torch.autograd.grad(loss(logprobs, row(LP_ROLL), row(ADVANTAGES), on(LP))[0], logprobs)
    assert grad.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 1.5), (-1.0, -1.875)])
def test_decoupled_ppo(advantage: float, expected: float) -> None:
    """11: proximal against sampler 1.25, current against proximal 1.5, eps .2."""
    proximal = row([math.log(1.25)])
    correction, _ = importance_weight(proximal, row([0.0]), on([1]), low=0.0, high=5.0, mode="clamp")
    loss, _ = ppo_loss(
        proximal + math.log(1.5), proximal, row([advantage]), on([1]), 1.0, eps_low=0.2, eps_high=0.2,
        correction=correction,
    )  # fmt: skip
    assert -loss.item() == pytest.approx(expected)


def test_the_proximal_policy_is_guessed_from_the_versions() -> None:
    """11: sampled at 5, published 9, in training 10: 0.8 of the way from -1 to -2; a fresh token has the sampler's."""
    current = row([-2.0, -2.0]).requires_grad_()
    guessed = interpolated_logprobs(current, row([-1.0, -1.0]), torch.tensor([5, 9]), 9)
    assert guessed.tolist() == pytest.approx([-1.8, -1.0])
    assert not guessed.requires_grad


def test_gspo_has_one_ratio_for_a_sequence() -> None:
    """11: ratios 4 and 1 make 2. With A = -1 it is not clipped: each of the two tokens has half of the slope."""
    logprobs = row([math.log(4), 0.0, 9.0]).unsqueeze(0).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    loss, sums = gspo_loss(logprobs, torch.zeros(1, 3), -torch.ones(1, 3), mask, 1 / 2, **CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == pytest.approx(2.0)
    assert grad.flatten().tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert int(sums["policy/trusted_fraction"]) == 2


@pytest.mark.parametrize(("ratio", "trusted"), [(1.00039, 2), (1.00041, 0)])
def test_gspo_clips_a_sequence_as_a_whole(ratio: float, trusted: int) -> None:
    logprobs = torch.full((1, 2), math.log(ratio), dtype=torch.float64)
    ones = torch.ones(1, 2)
    _, sums = gspo_loss(logprobs, torch.zeros(1, 2), ones, ones > 0, 1 / 2, eps_low=3e-4, eps_high=4e-4)
    assert int(sums["policy/trusted_fraction"]) == trusted


def test_pg_is_the_score_function_with_a_constant_weight() -> None:
    """Advantages 1 and -2, weights 2 and 0: gradient -2/2 on the first token, none on the one that counts 0."""
    logprobs = row([-1.0, -3.0]).requires_grad_()
    loss, sums = pg_loss(logprobs, row([1.0, -2.0]), on([1, 1]), 1 / 2, correction=row([2.0, 0.0]))
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert (loss.item(), grad.tolist()) == (1.0, [-1.0, 0.0])
    assert int(sums["policy/trusted_fraction"]) == 1


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


def _corrected(lp: Tensor, old: Tensor, a: Tensor, m: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    correction, _ = importance_weight(lp, old, m, low=0.5, high=2.0, mode="ratio")
    return ppo_loss(lp, old, a, m, 1.0, **CLIP, correction=correction)


LOSSES: dict[str, Loss] = {
    "ppo": lambda lp, old, a, m: ppo_loss(lp, old, a, m, 1.0, **CLIP),
    "dual": lambda lp, old, a, m: ppo_loss(lp, old, a, m, 1.0, **CLIP, dual_clip=3.0),
    "corrected": _corrected,
    "gspo": lambda lp, old, a, m: gspo_loss(lp, old, a, m, 1.0, **CLIP),
    "cispo": lambda lp, old, a, m: cispo_loss(lp, old, a, m, 1.0, low=0.0, high=4.0),
    "pg": lambda lp, old, a, m: pg_loss(lp, a, m, 1.0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_anything_may_stand_where_nothing_trains(name: str, poison: float) -> None:
    """O3, invariant 8: NaN, infinities and an advantage of 1e9 at a masked token change neither loss nor gradient."""
    clean = row([-0.5]).unsqueeze(0).requires_grad_()
    before, _ = LOSSES[name](clean, row([-0.6]).unsqueeze(0), torch.ones(1, 1), torch.ones(1, 1) > 0)
    (clean_grad,) = torch.autograd.grad(before, clean)
    logprobs = row([-0.5, poison, -1.0, -1.0]).unsqueeze(0).requires_grad_()
    old, advantages = row([-0.6, -1.0, poison, -1.0]), row([1.0, 1e9, 1e9, poison])
    mask = torch.tensor([[True, False, False, False]])
    loss, sums = LOSSES[name](logprobs, old.unsqueeze(0), advantages.unsqueeze(0), mask)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == pytest.approx(before.item())
    assert grad[0].tolist() == [pytest.approx(clean_grad.item()), 0.0, 0.0, 0.0]
    assert all(bool(torch.isfinite(value)) for value in sums.values())


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_to_train_is_a_zero_with_a_graph(name: str) -> None:
    """O3, invariant 9."""
    logprobs = row([-0.5, math.nan]).unsqueeze(0).requires_grad_()
    loss, sums = LOSSES[name](logprobs, torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2) > 0)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert (loss.item(), grad.tolist()) == (0.0, [[0.0, 0.0]])
    assert int(sums["policy/trusted_fraction"]) == 0


@pytest.mark.parametrize("name", ["ppo", "dual", "gspo"])
@pytest.mark.parametrize("far", [-2000.0, 2000.0])
def test_a_ratio_beyond_every_number_is_finite(name: str, far: float) -> None:
    """2.5: exp() is taken of at most 20 nats either way; a token beyond does not train."""
    logprobs = row([far]).unsqueeze(0).requires_grad_()
    for sign in (-1.0, 1.0):
        loss, sums = LOSSES[name](logprobs, torch.zeros(1, 1), sign * torch.ones(1, 1), torch.ones(1, 1) > 0)
        (grad,) = torch.autograd.grad(loss, logprobs)
        assert math.isfinite(loss.item())
        assert (grad.item(), int(sums["policy/trusted_fraction"])) == (0.0, 0)


def test_gradients_equal_finite_differences() -> None:
    """In float64, on both sides of the clips but off their kinks; the correction is a constant of the point."""
    logprobs, old = row([-0.5, -1.0, -2.0, -0.3]).unsqueeze(0), row([-0.6, -1.5, -1.9, -3.0]).unsqueeze(0)
    advantages, mask = row([1.0, 2.0, -1.0, -2.0]).unsqueeze(0), torch.ones(1, 4) > 0
    for name in ("ppo", "dual", "gspo"):
        assert torch.autograd.gradcheck(
            lambda x, n=name: LOSSES[n](x, old, advantages, mask)[0], logprobs.clone().requires_grad_()
        )
    correction, _ = importance_weight(logprobs, old, mask, low=0.5, high=2.0, mode="ratio")
    weighted = logprobs.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: ppo_loss(x, old, advantages, mask, 0.25, **CLIP, correction=correction)[0], weighted
    )


@pytest.mark.parametrize("name", ["cispo", "pg", "corrected"])
def test_detached_forms_equal_finite_differences_of_their_surrogate(name: str) -> None:
    """The surrogate keeps everywhere the weight of the tested point: differencing it leaves the weight out."""
    at, old = row([-0.5, -1.0, -2.0]), row([-0.6, -1.9, -1.9])
    advantages, mask, h = row([1.0, 2.0, -1.0]), on(LP[:3]), 1e-6
    constant = importance_weight(at, old, mask, low=0.0, high=4.0, mode="clamp")[0]
    popped = importance_weight(at, old, mask, low=0.5, high=2.0, mode="ratio")[0]

    def surrogate(x: Tensor) -> float:
        if name == "corrected":
            ratio = (x - old).exp()
            clipped = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
            return -float((popped * clipped).sum())
        return -float(((constant if name == "cispo" else 1.0) * advantages * x).sum())

    numeric = [(surrogate(at + h * e) - surrogate(at - h * e)) / (2 * h) for e in torch.eye(3, dtype=torch.float64)]
    logprobs = at.clone().requires_grad_()
    (grad,) = torch.autograd.grad(LOSSES[name](logprobs, old, advantages, mask)[0], logprobs)
    assert grad.tolist() == pytest.approx(numeric, abs=1e-6)


numbers = st.floats(-3.0, 0.0)
columns = st.lists(st.tuples(numbers, numbers, st.floats(-5.0, 5.0), st.booleans()), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(columns)
def test_the_clipped_surrogate_is_the_smaller_of_two(tokens: list[tuple[float, float, float, bool]]) -> None:
    """``min(r A, clip(r) A)`` in so many words, value and gradient; off the kinks by the choice of bounds."""
    logprobs, old, advantages = (row([token[k] for token in tokens]) for k in range(3))
    mask = torch.tensor([token[3] for token in tokens])
    ours, theirs = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    loss, _ = ppo_loss(ours, old, advantages, mask, 1.0, eps_low=0.2137, eps_high=0.2811)
    ratio = (theirs - old).exp()
    plain = -torch.minimum(ratio * advantages, ratio.clamp(1 - 0.2137, 1.2811) * advantages)[mask].sum()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(*(torch.autograd.grad(each, leaf)[0] for each, leaf in ((loss, ours), (plain, theirs))))


@settings(max_examples=30, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=8), st.floats(-5.0, 5.0))
def test_at_the_old_policy_all_are_the_plain_policy_gradient(tokens: list[float], advantage: float) -> None:
    """Ratio 1: -A for each token; GSPO too, as its sequence shares one advantage."""
    advantages = torch.full((1, len(tokens)), advantage, dtype=torch.float64)
    for name, loss in LOSSES.items():
        logprobs = row(tokens).unsqueeze(0).requires_grad_()
        (grad,) = torch.autograd.grad(
            loss(logprobs, logprobs.detach(), advantages, torch.ones_like(advantages) > 0)[0], logprobs
        )
        torch.testing.assert_close(grad, -advantages, msg=name)


@pytest.mark.parametrize(("eps_low", "eps_high", "dual"), [(1.0, 0.2, None), (0.2, -0.1, None), (0.2, 0.2, 1.0)])
def test_a_clip_that_cannot_be_is_refused(eps_low: float, eps_high: float, dual: float | None) -> None:
    zero = row([0.0])
    with pytest.raises(ValueError, match="a clip needs"):
        ppo_loss(zero, zero, zero, on([1]), 1.0, eps_low=eps_low, eps_high=eps_high, dual_clip=dual)

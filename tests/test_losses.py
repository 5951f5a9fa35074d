"""The DIS and value losses: published vectors, both sides of every border, and gradients against finite differences."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glmgym_trainers.losses import DisForm, dis_loss, value_loss

FORMS = get_args(DisForm)
CODING = {"low": 0.2, "high": 4.0}
MATH = {"low": 0.7, "high": 6.0}

# Algorithm specification 4.6: four tokens, coding band.
LP = [-0.5, -2.0, -1.0, -3.0]
LP_ROLL = [-0.7, -1.5, -3.0, -1.2]
ADVANTAGES = [1.0, -1.0, 2.0, 0.5]
DIS_GRAD = [-0.3053506895, 0.1516326649, 0.0, 0.0]


def row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dis_grad(
    logprobs: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor, form: DisForm, band: dict[str, float] = CODING
) -> tuple[float, Tensor]:
    leaf = logprobs.clone().requires_grad_()
    loss, _ = dis_loss(leaf, rollout, advantages, mask, 1 / len(leaf), **band, form=form)
    (grad,) = torch.autograd.grad(loss, leaf)
    return loss.item(), grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("band", "ratios", "expected"),
    [
        (CODING, [0.19, 0.2, 0.21, 0.7, 1.0, 3.99, 4.0, 6.0], [0, 0, 0.21, 0.7, 1.0, 3.99, 0, 0]),
        (MATH, [0.69, 0.7, 0.71, 1.0, 5.99, 6.0, 6.01], [0, 0, 0.71, 1.0, 5.99, 0, 0]),
    ],
)
def test_only_the_open_band_trains_and_its_weight_is_the_ratio(
    form: DisForm, band: dict[str, float], ratios: list[float], expected: list[float]
) -> None:
    """4.6: with advantage 1 the gradient is -weight / N; both bounds themselves are outside."""
    _, grad = dis_grad(
        row(ratios).log(), torch.zeros(len(ratios)), torch.ones(len(ratios)), torch.ones(len(ratios)) > 0, form, band
    )
    assert (-grad * len(ratios)).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("form", "loss"), [("detached", -0.1505899851), ("surrogate", -0.1537180246)])
def test_both_forms_differ_in_value_and_agree_in_gradient(form: DisForm, loss: float) -> None:
    """4.6, the four-token vector."""
    value, grad = dis_grad(row(LP), row(LP_ROLL), row(ADVANTAGES), torch.ones(4) > 0, form)
    assert value == pytest.approx(loss, abs=1e-9)
    assert grad.tolist() == pytest.approx(DIS_GRAD, abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        [-0.1526753448, -0.1516326649, 0.0, 0.0],  # a live ratio times log p: the sign of token 1 flips
        [-0.3053506895, 0.1516326649, 0.0, -0.0206623610],  # PPO's clip keeps the low ratio of a positive advantage
        [-0.3053506895, 0.1516326649, -2.0, -0.025],  # CISPO keeps everything
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_the_known_wrong_gradients_are_not_ours(form: DisForm, wrong: list[float]) -> None:
    """4.6, the negatives."""
    _, grad = dis_grad(row(LP), row(LP_ROLL), row(ADVANTAGES), torch.ones(4) > 0, form)
    assert (grad - row(wrong)).abs().max() > 0.02


def test_metrics_are_sums_over_sampled_tokens() -> None:
    """4.6: of four tokens one is above the band and one below; |log ratio| adds up to 0.2 + 0.5 + 2 + 1.8."""
    mask = torch.tensor([True] * 4 + [False])
    logprobs, rollout = row([*LP, -9.0]), row([*LP_ROLL, -1.0])
    _, sums = dis_loss(logprobs, rollout, row([*ADVANTAGES, 1.0]), mask, 1 / 4, **CODING)
    names = ("policy/trusted_fraction", "dis/below_fraction", "dis/above_fraction")
    assert [int(sums[name]) for name in names] == [2, 1, 1]
    assert float(sums["dis/abs_log_ratio"]) == pytest.approx(4.5)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_trusted_is_a_zero_with_a_graph(form: DisForm) -> None:
    """O3: every ratio outside the band: loss exactly 0, gradients finite and zero, even where exp() would overflow."""
    logprobs = torch.tensor([-0.1, -2000.0, -0.1], requires_grad=True)
    rollout = torch.tensor([-2000.0, -0.1, -5.0])
    loss, sums = dis_loss(logprobs, rollout, torch.ones(3), torch.ones(3) > 0, 1 / 3, **CODING, form=form)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == 0.0
    assert grad.tolist() == [0.0, 0.0, 0.0]
    assert int(sums["policy/trusted_fraction"]) == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_anything_may_stand_where_nobody_sampled(form: DisForm, poison: float) -> None:
    """O3, invariant 8: NaN, infinities and an advantage of 1e9 at a masked token change neither loss nor gradient."""
    clean, clean_grad = dis_grad(row([-0.5]), row([-0.7]), row([1.0]), torch.tensor([True]), form)
    logprobs = row([-0.5, poison, -1.0, -1.0]).requires_grad_()
    rollout, advantages = row([-0.7, -1.0, poison, -1.0]), row([1.0, 1e9, 1e9, poison])
    mask = torch.tensor([True, False, False, False])
    loss, sums = dis_loss(logprobs, rollout, advantages, mask, 1.0, **CODING, form=form)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == clean
    assert grad.tolist() == [clean_grad.item(), 0.0, 0.0, 0.0]
    assert all(bool(torch.isfinite(value)) for value in sums.values())


floats = st.floats(-3.0, 0.0)
tokens = st.lists(st.tuples(floats, floats, st.floats(-5.0, 5.0), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(tokens)
def test_both_forms_have_the_gradient_of_minus_mask_ratio_advantage(
    columns: list[tuple[float, float, float, bool]],
) -> None:
    """Invariant 3, and the closed form -ratio * A / N where trusted."""
    logprobs, rollout, advantages = (row([c[k] for c in columns]) for k in range(3))
    mask = torch.tensor([c[3] for c in columns])
    ratio = (logprobs - rollout).exp()
    trusted = mask & (ratio > 0.2) & (ratio < 4.0)
    expected = torch.where(trusted, -ratio * advantages / len(columns), 0.0)
    for form in FORMS:
        _, grad = dis_grad(logprobs, rollout, advantages, mask, form)
        torch.testing.assert_close(grad, expected, atol=1e-12, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(floats, st.floats(-5.0, 5.0)), min_size=1, max_size=12))
def test_on_policy_it_is_the_plain_policy_gradient(columns: list[tuple[float, float]]) -> None:
    """Invariant 2: logprobs equal to the rollout's give -A / N."""
    logprobs, advantages = (row([c[k] for c in columns]) for k in range(2))
    for form in FORMS:
        _, grad = dis_grad(logprobs, logprobs, advantages, torch.ones(len(columns)) > 0, form)
        torch.testing.assert_close(grad, -advantages / len(columns), atol=1e-12, rtol=1e-12)


def test_surrogate_gradient_equals_finite_differences() -> None:
    """In float64, inside the band; the detached form has no potential to difference, its gradient equals this one."""
    logprobs = row(LP[:2]).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: dis_loss(
            x, row(LP_ROLL[:2]), row(ADVANTAGES[:2]), torch.ones(2) > 0, 1 / 2, **CODING, form="surrogate"
        )[0],
        (logprobs,),
    )


@pytest.mark.parametrize("cut", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_the_cut_into_micro_batches_does_not_scale_the_loss(cut: list[int]) -> None:
    """O4: four tokens as {4}, {1,3}, {2,2}, with the global count in every part."""
    whole, _ = dis_grad(row(LP), row(LP_ROLL), row(ADVANTAGES), torch.ones(4) > 0, "surrogate")
    columns = zip(*(row(column).split(cut) for column in (LP, LP_ROLL, ADVANTAGES)), strict=True)
    parts = [dis_loss(*part, torch.ones(len(part[0])) > 0, 1 / 4, **CODING, form="surrogate")[0] for part in columns]
    assert float(sum(parts)) == pytest.approx(whole, abs=1e-12)


def test_token_mean_weighs_tokens_not_segments() -> None:
    """O2: one segment of 4 tokens and 4 of 1 token weigh the same, 0.5 each; 0.2 and 0.8 is the bug."""
    logprobs = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 4] + [[True, False, False, False]] * 4)
    loss, _ = dis_loss(logprobs, torch.zeros(5, 4), torch.ones(5, 4), mask, 1 / 8, **CODING)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad[0].sum().item() == pytest.approx(-0.5)
    assert grad[1:].sum().item() == pytest.approx(-0.5)


@pytest.mark.parametrize(("low", "high"), [(0.0, 4.0), (1.0, 4.0), (0.2, 1.0), (4.0, 0.2)])
def test_a_band_without_the_ratio_one_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="trust band"):
        dis_loss(row([0.0]), row([0.0]), row([0.0]), torch.tensor([True]), 1.0, low=low, high=high)


@pytest.mark.parametrize(("value", "expected"), [(0.5, 0.25), (0.6, 0.16), (0.9, 0.09)])
def test_the_clipped_value_error_takes_the_larger_one(value: float, expected: float) -> None:
    """Specification 11: old value 0.5, return 1, clip 0.2: 0.9 is held at 0.7, whose error is 0.3."""
    args = (row([value]), row([1.0]), torch.tensor([True]))
    loss, _ = value_loss(*args, 1.0, clip=0.2, old_values=row([0.5]))
    assert loss.item() == pytest.approx(expected)
    assert value_loss(*args, 1.0)[0].item() == pytest.approx((value - 1.0) ** 2)


def test_value_loss_is_a_plain_mean_and_ignores_what_was_not_sampled() -> None:
    """O3: errors 1 and 2 over 2 tokens: 2.5, gradient (-1, 2); NaN at the third position is harmless."""
    values = row([0.0, 3.0, math.nan]).requires_grad_()
    mask = torch.tensor([True, True, False])
    loss, sums = value_loss(values, row([1.0, 1.0, math.inf]), mask, 1 / 2)
    (grad,) = torch.autograd.grad(loss, values)
    assert loss.item() == 2.5
    assert grad.tolist() == [-1.0, 2.0, 0.0]
    assert {name: float(value) for name, value in sums.items()} == {
        "value/count": 2, "value/squared_error": 5, "value/error": 1, "value/return": 2, "value/return_squared": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match="old values"):
        value_loss(values, values, mask, 1 / 2, clip=0.2)

"""Advantages and divergences from a teacher: published vectors, known wrong answers, the law that agreement is 0."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_glm import segment, tiny_glm, trajectory
from torch import Tensor

from glmgym.errors import ConfigError, GlmgymError
from glmgym.scoring import TeacherScore
from glmgym.settings import parse_settings
from glmgym.trajectory import Failure, Outcome, Stop, Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import Extra, Forward, Mopd, MopdSettings, Opd, OpdSettings
from glmgym_trainers.batch import Batch, Row, collate
from glmgym_trainers.credit import has_signal
from glmgym_trainers.distillation import teacher_advantages, top_k_divergence
from glmgym_trainers.losses import pg_loss

# Algorithm specification 7.4.
LP_T = [-0.1, -2.0, -1.0, -12.0]
LP_S = [-0.5, -1.0, -1.0, -1.0]
# Algorithm specification 8.3: four tokens, of which the teacher's likeliest two are 0 and 1.
Q = [0.5, 0.3, 0.15, 0.05]
P = [0.4, 0.35, 0.2, 0.05]


def row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def advantages(teacher: list[float], student: list[float], a_max: float = 20.0, coef: float = 1.0) -> list[float]:
    mask = torch.ones(len(teacher)) > 0
    return teacher_advantages(row(teacher), row(student), mask, a_max=a_max, coef=coef)[0].tolist()


def test_the_advantage_is_how_much_likelier_the_teacher_finds_a_token() -> None:
    """7.4: unclipped, clipped at 5; slime's coefficient halves a gap of -2."""
    assert advantages(LP_T, LP_S) == pytest.approx([0.4, -1, 0, -11])
    assert advantages(LP_T, LP_S, a_max=5.0) == pytest.approx([0.4, -1, 0, -5])
    assert 2.0 + advantages([-3.0], [-1.0], coef=0.5)[0] == pytest.approx(1.0)


def test_advantages_are_not_whitened() -> None:
    """7.3: one disagreement among agreements is that disagreement; centring or scaling would move the zeros."""
    assert advantages([-1.0, -1.0, -3.0], [-1.0, -1.0, -1.0]) == [0.0, 0.0, -2.0]


def test_the_policy_gradient_form() -> None:
    """7.4: loss -1.45; the live, unclipped form would have the gradient [-.225, 0, -.25, 2.5]."""
    student = row(LP_S).requires_grad_()
    mask = torch.ones(4) > 0
    taught, _ = teacher_advantages(row(LP_T), student, mask, a_max=5.0)
    assert not taught.requires_grad
    loss, _ = pg_loss(student, taught, mask, 1 / 4)
    (grad,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx(-1.45)
    assert grad.tolist() == pytest.approx([-0.1, 0.25, 0, 1.25])


def test_in_expectation_it_is_the_gradient_of_the_reverse_divergence() -> None:
    """7.4: over all tokens weighed by the student; KL .2396422817."""
    logits, teacher = row([0.5, -0.3, 0.1]).requires_grad_(), row([0.2, 0.5, 0.3]).log()
    logprobs = logits.log_softmax(-1)
    probs = logprobs.detach().exp()
    taught, _ = teacher_advantages(teacher, logprobs, torch.ones(3) > 0, a_max=20.0)
    (grad,) = torch.autograd.grad(pg_loss(logprobs, taught, torch.ones(3) > 0, probs)[0], logits, retain_graph=True)
    expected = [0.2918148779, -0.2327031021, -0.0591117758]
    assert grad.tolist() == pytest.approx(expected, abs=1e-9)
    full, _ = top_k_divergence(logprobs[None], teacher[None], 1.0)
    assert full.item() == pytest.approx(0.2396422817)
    assert torch.autograd.grad(full, logits)[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_a_token_the_teacher_excludes_is_clamped_and_counted() -> None:
    """7.3; what stands at a masked token is in no sum (invariant 8)."""
    mask = torch.tensor([True, True, False, False])
    taught, sums = teacher_advantages(
        row([-math.inf, -1.0, math.nan, -math.inf]), row([-1.0, -1.5, -1.0, math.nan]), mask, a_max=5.0
    )
    assert taught.tolist() == [-5.0, 0.5, 0.0, 0.0]
    assert {name: float(value) for name, value in sums.items()} == {
        "teacher/clipped_fraction": 1, "teacher/excluded_fraction": 1, "teacher/abs_advantage": 5.5
    }  # fmt: skip
    with pytest.raises(ValueError, match="a_max"):
        teacher_advantages(row([0.0]), row([0.0]), mask[:1], a_max=0.0)


def divergence(p: list[float], k: int) -> tuple[float, Tensor]:
    """Loss and gradient with respect to logits, over the teacher's likeliest k tokens."""
    logits = row(p).log().requires_grad_()
    loss, _ = top_k_divergence(logits.log_softmax(-1)[None, :k], row(Q).log()[None, :k], 1.0)
    return loss.item(), torch.autograd.grad(loss, logits)[0]


def test_agreement_is_a_divergence_of_zero_without_gradient() -> None:
    """8.3, invariant 1: uncorrected, the gradient would be [.10, .06, -.12, -.04]."""
    for k in (2, 4):
        loss, grad = divergence(Q, k)
        assert abs(loss) < 1e-15
        assert grad.abs().max() < 1e-15


def test_the_correction_makes_the_truncated_divergence_positive() -> None:
    """8.3: uncorrected the loss would be -.0353046826."""
    loss, grad = divergence(P, 2)
    assert loss == pytest.approx(0.0146953174)
    assert grad.tolist() == pytest.approx([-0.0751355475, 0.0663093768, 0.0070609365, 0.0017652341], abs=1e-9)
    inside = sum(p * math.log(p / q) for p, q in zip(P[:2], Q[:2], strict=True))
    closed = [p * (math.log(p / q) * (v < 2) - inside) for v, (p, q) in enumerate(zip(P, Q, strict=True))]
    assert grad.tolist() == pytest.approx(closed, abs=1e-12)


def test_over_the_whole_vocabulary_it_is_the_reverse_divergence() -> None:
    """8.3, invariant 13: the correction adds up to nothing."""
    loss, grad = divergence(P, 4)
    assert loss == pytest.approx(0.0222317319)
    assert loss == pytest.approx(sum(p * math.log(p / q) for p, q in zip(P, Q, strict=True)))
    assert grad.tolist() == pytest.approx([-0.0981501133, 0.0461716318, 0.0530900681, -0.0011115866], abs=1e-9)


logits = st.lists(st.floats(-4.0, 4.0), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(logits, logits, st.integers(1, 4))
def test_no_summand_is_negative(student: list[float], teacher: list[float], k: int) -> None:
    """8.1: each is a Bregman divergence, so that a student can gain nothing by leaving the teacher's tokens."""
    log_p, log_q = row(student).log_softmax(-1), row(teacher).log_softmax(-1)
    top = log_q.topk(k).indices
    assert all(
        top_k_divergence(log_p[top[i : i + 1]][None], log_q[top[i : i + 1]][None], 1.0)[0] > -1e-15 for i in range(k)
    )


def test_the_divergence_gradient_equals_finite_differences() -> None:
    student, teacher = row([0.3, -1.0, 0.7, 0.1]).requires_grad_(), row(Q).log()[None, :2]
    assert torch.autograd.gradcheck(
        lambda z: top_k_divergence(z.log_softmax(-1)[None, :2], teacher, 0.5)[0], (student,)
    )


def test_a_probability_of_zero_is_no_nan() -> None:
    """8.2: p log p is 0 at p = 0; a token that only the student has costs much but stays finite."""
    log_p = row([0.0, -math.inf])[None].requires_grad_()
    loss, sums = top_k_divergence(log_p, row([0.5, 0.5]).log()[None], 1.0)
    (grad,) = torch.autograd.grad(loss, log_p)
    assert loss.item() == pytest.approx(math.log(2))  # 1 log 2 - 1 + .5, and .5 for the missing one
    assert torch.isfinite(grad).all()
    assert {name: float(v) for name, v in sums.items()}["teacher/student_mass"] == pytest.approx(1.0)
    assert torch.isfinite(top_k_divergence(row([0.5, 0.5]).log()[None], row([0.0, -math.inf])[None], 1.0)[0])
    nobody = top_k_divergence(row([0.0, -math.inf])[None], row([0.0, -math.inf])[None], 1.0)[0]
    assert nobody.item() == 0.0


def test_tokens_that_count_nothing_are_not_trusted() -> None:
    loss, sums = top_k_divergence(row(P).log().repeat(3, 1), row(Q).log().repeat(3, 1), row([0.5, 0.0, 0.5]))
    assert loss.item() == pytest.approx(0.0222317319)
    assert int(sums["policy/trusted_fraction"]) == 2
    assert float(sums["teacher/divergence"]) == pytest.approx(3 * 0.0222317319)


def scored(actor: Actor, temperature: float, *, seed: int = 0) -> tuple[Row, Tensor]:
    """A row with the log-probs of ``actor`` as its teacher's, and those log-probs."""
    drawn = segment("ppaaooaaa", seed)
    plain = Row.of(Trajectory("t", "task", "env-v0", (drawn,), Outcome(Stop.DONE)), 0)
    with torch.no_grad():
        logprobs = actor.logprobs(collate([plain]), temperature)
    return plain, logprobs


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_a_teacher_that_is_the_student_teaches_nothing(temperature: float) -> None:
    """O6, invariant 1: |A| < 1e-6 at every temperature; one at another temperature would teach."""
    actor = Actor(tiny_glm())
    plain, student = scored(actor, temperature)
    mask = torch.tensor(plain.trained_mask)[None]
    _, twin = scored(Actor(tiny_glm()), temperature)
    taught, _ = teacher_advantages(twin, student, mask, a_max=5.0)
    assert taught.abs().max() < 1e-6
    _, warmer = scored(actor, temperature + 0.4)
    assert teacher_advantages(warmer, student, mask, a_max=5.0)[0].abs().max() > 0.1


def coded(length: int) -> TeacherScore:
    """A teacher whose log-prob of the token at p is -p."""
    return TeacherScore("coded", -np.arange(length, dtype=np.float32))


def coded_batch() -> Batch:
    pair = (trajectory("short", ["paoa"]), trajectory("long", ["ppaaooaaa"], seed=3))
    rows = [Row.of(each, 0) for each in pair]
    return collate([replace(each, teacher=coded(len(each))) for each in rows])


def test_a_teacher_s_score_meets_the_token_it_is_about() -> None:
    """O6: at old log-probs of 0 the gradient of a token at p is p times its weight; off by one it would be p - 1."""
    batch = coded_batch()
    logprobs = torch.zeros_like(batch.rollout_logprobs, requires_grad=True)
    batch.rollout_logprobs.zero_()
    batch.weights.fill_(1.0)
    for algorithm in (Opd(OpdSettings()), Mopd(MopdSettings(a_max=20.0))):
        out = algorithm.loss(Forward(logprobs, torch.zeros_like(logprobs)), batch)
        (grad,) = torch.autograd.grad(out.loss, logprobs)
        assert grad.tolist() == [[0, 1, 0, 3, 0, 0, 0, 0, 0], [0, 0, 2, 3, 0, 0, 6, 7, 8]]


def test_the_task_s_advantage_trains_beside_the_teacher() -> None:
    """An advantage of 2 on every token: p - 2 in place of p; beside the divergence, -2 for the sampled token."""
    batch = replace(coded_batch(), advantages=torch.full((2, 9), 2.0), weights=torch.ones(2, 1))
    logprobs = torch.zeros_like(batch.rollout_logprobs, requires_grad=True)
    batch.rollout_logprobs.zero_()
    for algorithm in (Opd(OpdSettings()), Mopd(MopdSettings(a_max=20.0))):
        out = algorithm.loss(Forward(logprobs, torch.zeros_like(logprobs)), batch)
        (grad,) = torch.autograd.grad(out.loss, logprobs)
        assert grad.tolist() == [[0, -1, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 4, 5, 6]]
    top = torch.full((7, 2), math.log(0.5))
    batch = replace(batch, teacher_top_ids=torch.zeros(7, 2, dtype=torch.int64), teacher_top_logprobs=top)
    out = Mopd(MopdSettings(form="topk", k=2)).loss(Forward(logprobs, logprobs.detach(), top), batch)
    (grad,) = torch.autograd.grad(out.loss, logprobs)
    assert grad.tolist() == torch.where(batch.trained_mask, -2.0, 0.0).tolist()


def test_opd_keeps_the_rest_of_the_objective() -> None:
    """1.8: the clip and the IcePop weight stay: A = .4 at ratio 1.3 is clipped, at weight 2.5 popped, at 1.1 counts."""
    mask = torch.tensor([[True, True, True, True]])
    old = row([-0.5, -0.5 + math.log(2.5), -0.5 + math.log(1.1), -0.5])[None]
    teacher = old + 0.4
    ratio = row([1.3, 1.0, 1.1, 0.5])[None]
    logprobs = (old + ratio.log()).requires_grad_()
    batch = replace(
        coded_batch(),
        trained_mask=mask,
        rollout_logprobs=torch.full((1, 4), -0.5),
        advantages=torch.zeros(1, 4),
        weights=torch.tensor([[0.25]]),
        teacher_logprobs=teacher,
    )
    out = Opd(OpdSettings()).loss(Forward(logprobs, old), batch)
    (grad,) = torch.autograd.grad(out.loss, logprobs)
    assert grad[0].tolist() == pytest.approx([0, 0, -0.1 * 1.1 * 1.1, -0.1 * 0.5])
    assert int(out.sums["policy/trusted_fraction"]) == 2
    assert {"weight/above_fraction", "teacher/abs_advantage", "clip/positive_fraction"} <= set(out.sums)


def taught(*ids: str, k: int = 0) -> tuple[list[Trajectory], Extra]:
    group = [trajectory(id, ["pao", "pa"], reward) for id, reward in zip(ids, (1.0, 3.0), strict=False)]
    top = {"top_ids": np.zeros((3, k), np.int32), "top_logprobs": np.zeros((3, k), np.float32)} if k else {}
    scores = {
        (each.id, index): TeacherScore("t", np.zeros(len(s), np.float32), **({n: c[: len(s)] for n, c in top.items()}))
        for each in group
        for index, s in enumerate(each.segments)
    }
    return group, Extra(teachers=scores)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, (0.0, 0.0)),
        ({"alpha": 0.5}, (0.5, 1.5)),
        ({"alpha": 0.5, "task_baseline": "group", "group_size": 2}, (-0.5, 0.5)),
    ],
)
def test_the_task_s_own_advantage_counts_by_alpha(own: dict[str, object], expected: tuple[float, float]) -> None:
    """Rewards 1 and 3, themselves or against their mean 2."""
    group, extra = taught("a", "b")
    credits = Opd(parse_settings(OpdSettings, own, where="test")).credit(group, extra)
    assert [c.advantages[1] for c in credits] == pytest.approx([expected[0]] * 2 + [expected[1]] * 2)
    assert has_signal(credits) == any(expected)


def test_pure_distillation_needs_no_reward_and_a_failure_has_no_credit() -> None:
    """8.2: a truncated, ungraded answer carries the teacher's signal; with ``alpha`` its reward must exist."""
    group, extra = taught("a")
    ungraded = Trajectory("a", "task", "env-v0", group[0].segments, Outcome(Stop.CONTEXT_FULL))
    failed = Trajectory("f", "task", "env-v0", (), Outcome(Stop.FAILED, failure=Failure("engine", "Dead", "gone")))
    assert [c.trajectory_id for c in Opd(OpdSettings()).credit([ungraded, failed], extra)] == ["a", "a"]
    assert Opd(OpdSettings(alpha=1.0)).credit([failed], Extra()) == []
    with pytest.raises(GlmgymError, match="never graded"):
        Opd(OpdSettings(alpha=1.0)).credit([ungraded], extra)


def test_a_segment_without_its_teacher_is_refused() -> None:
    """O6: never a default teacher; a score of other tokens, or without the likeliest ones, is none."""
    group, extra = taught("a")
    opd, topk = Opd(OpdSettings()), Mopd(MopdSettings(form="topk", k=2))
    with pytest.raises(GlmgymError, match="trajectory a segment 0 needs a teacher's log-probs of 3 tokens, got none"):
        opd.credit(group, Extra())
    short = Extra(teachers={**extra.teachers, ("a", 1): coded(3)})
    with pytest.raises(GlmgymError, match="segment 1 needs a teacher's log-probs of 2 tokens, got 3"):
        opd.credit(group, short)
    with pytest.raises(GlmgymError, match="segment 0 needs up to 2 of the likeliest tokens of 't', got 0"):
        topk.credit(group, extra)
    for given_k, is_right in ((1, True), (2, True), (3, False)):  # a small vocabulary may give fewer
        pair = taught("a", k=given_k)
        if is_right:
            assert len(topk.credit(*pair)) == 2
        else:
            with pytest.raises(GlmgymError, match="got 3"):
                topk.credit(*pair)
    assert len(Mopd(MopdSettings(form="topk", k=-1)).credit(*taught("a", k=3))) == 2


def test_published_defaults() -> None:
    """7.1 and 8.1: group 1, IcePop's and the clip's numbers of equation 1; A_max 5 and k 64."""
    opd, mopd = OpdSettings(), MopdSettings()
    assert (opd.group_size, opd.coef, opd.beta, opd.eps_low, opd.eps_high) == (1, 1.0, 2.0, 0.2, 0.28)
    assert (mopd.group_size, mopd.a_max, mopd.k, mopd.form) == (1, 5.0, 64, "pg")
    assert (Opd(opd).reduction, Mopd(mopd).reduction) == ("seq_mean", "seq_mean")
    assert [Mopd(MopdSettings(form=form)).teacher_top_k for form in ("pg", "topk")] == [0, 64]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="advantage 0"):
        parse_settings(OpdSettings, {"alpha": 1.0, "task_baseline": "group"}, where="test")
    with pytest.raises(ConfigError, match="k = 0: must be at least 1"):
        parse_settings(MopdSettings, {"k": 0}, where="test")

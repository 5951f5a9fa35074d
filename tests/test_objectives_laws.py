"""Laws that every algorithm by name obeys: no cut, order, padding or rank matters, and only a trained token has a say.

The policy here is a table of logits, one row per token, in float64: nothing is left to the rounding of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_glm import VOCAB, tiny_glm, trajectory
from torch import Tensor

from glmgym.scoring import TeacherScore
from glmgym.settings import parse_settings
from glmgym.trajectory import Stop, Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import ALGORITHMS, Algorithm, Extra, Forward, LossOut
from glmgym_trainers.batch import Batch, Row, collate, rows_of, split_trajectories
from glmgym_trainers.optim import StepResult, optimizer_step
from glmgym_trainers.reductions import weigh

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ALGORITHMS),
    ("sao", {"form": "surrogate", "value_clip": 0.2, "reduction": "rollout_mean"}),
    ("dis", {"fill": "none", "reduction": "seq_mean"}),
    ("grpo", {"weight_mode": "mask", "overlong": "mask", "reduction": "token_mean", "dual_clip": 3.0}),
    ("compaction", {"objective": "dis", "train_summary": False}),
    ("compaction", {"old": "rollout", "reduction": "seq_mean", "cross_segment_factor": False}),
    ("opd", {"alpha": 0.5, "reduction": "token_mean"}),
    ("mopd", {"form": "topk", "k": 3, "correction": "icepop", "alpha": 0.5}),
    ("mopd", {"form": "topk", "k": -1}),
    ("mopd", {"correction": "icepop"}),
    ("cispo", {"old": "rollout", "low": 0.9, "high": 1.1}),
    ("decoupled_ppo", {"proximal": "interpolated", "cap_mode": "ratio"}),
]
IDS = [f"{name}-{'-'.join(map(str, own.values()))}".rstrip("-") for name, own in VARIANTS]
every_variant = pytest.mark.parametrize(("name", "own"), VARIANTS, ids=IDS)


def built(name: str, own: dict[str, Any]) -> Algorithm:
    """An algorithm whose groups may have two members, so that the tests' own are whole."""
    kind = ALGORITHMS[name]
    size = {"group_size": 2} if "fill" in kind.Settings.model_fields else {}
    algorithm: Algorithm = kind(parse_settings(kind.Settings, {**size, **own}, where="test"))
    return algorithm


class World:
    """Trajectories, what a critic and a teacher say of them, and two tables of logits: the policy and its old self."""

    def __init__(self, algorithm: Algorithm, groups: Sequence[Sequence[Trajectory]]) -> None:
        random = np.random.default_rng(3)
        self.algorithm = algorithm
        self.trajectories = [each for group in groups for each in group]
        segments = {(t.id, k): s for t in self.trajectories for k, s in enumerate(t.segments)}
        self.logits = {
            key: torch.tensor(random.normal(size=(len(s), VOCAB)), requires_grad=True) for key, s in segments.items()
        }
        self.old = {key: t.detach() + torch.tensor(random.normal(0, 0.3, t.shape)) for key, t in self.logits.items()}
        self.values = {key: torch.tensor(random.normal(size=len(s)), requires_grad=True) for key, s in segments.items()}
        k = VOCAB if algorithm.teacher_top_k < 0 else algorithm.teacher_top_k
        teachers = {}
        for key, segment in segments.items():
            logprobs = torch.tensor(random.normal(size=(len(segment), VOCAB))).log_softmax(-1)
            top = logprobs.topk(k) if k else None
            teachers[key] = TeacherScore(
                "teacher",
                logprobs[range(len(segment)), segment.token_ids].numpy().astype(np.float32),
                top.indices.numpy().astype(np.int32) if top else None,
                top.values.numpy().astype(np.float32) if top else None,
            )
        critic = {key: random.normal(size=len(s) + 1).astype(np.float32) for key, s in segments.items()}
        self.extra = Extra(critic, teachers)
        credits = [credit for group in groups for credit in algorithm.credit(group, self.extra)]
        rows = [
            replace(
                row,
                old_values=critic[row.trajectory_id, row.segment_index][:-1],
                teacher=teachers[row.trajectory_id, row.segment_index] if algorithm.uses_teacher else None,
                # Near the policy, so that most tokens are within every band.
                rollout_logprobs=self._old_logprobs(row) + random.normal(0, 0.4, len(row)).astype(np.float32),
            )
            for row in rows_of(self.trajectories, credits)
        ]
        self.rows = weigh(rows, algorithm.reduction)

    def out(self, rows: Sequence[Row], batch: Batch) -> LossOut:
        own = self.padded(self.logits, rows, batch).log_softmax(-1)
        old = self.padded(self.old, rows, batch).log_softmax(-1)
        ids = batch.token_ids.unsqueeze(-1)
        top = None
        if batch.teacher_top_ids is not None:
            top = own[batch.trained_at()].gather(-1, batch.teacher_top_ids)
        forward = Forward(own.gather(-1, ids).squeeze(-1), old.gather(-1, ids).squeeze(-1), top, version=5)
        return self.algorithm.loss(forward, batch)

    def critic_out(self, rows: Sequence[Row], batch: Batch) -> LossOut:
        return self.algorithm.critic_loss(self.padded(self.values, rows, batch), batch)

    def total(self, parts: Sequence[Sequence[Row]], *, pad_to: int = 0) -> tuple[float, list[Tensor], dict[str, float]]:
        """Loss, gradients of both tables and sums, added up over the parts of a batch."""
        loss = torch.zeros((), dtype=torch.float64)
        sums: dict[str, float] = {}
        for part in parts:
            batch = collate(part, pad_to=pad_to)
            outs = [self.out(part, batch)] + ([self.critic_out(part, batch)] if self.algorithm.uses_critic else [])
            for out in outs:
                loss = loss + out.loss
                for key, value in out.sums.items():
                    sums[key] = sums.get(key, 0.0) + float(value)
        leaves = [*self.logits.values(), *self.values.values()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return loss.item(), list(grads), sums

    def _old_logprobs(self, row: Row) -> np.ndarray[Any, Any]:
        table = self.old[row.trajectory_id, row.segment_index].log_softmax(-1)
        logprobs: np.ndarray[Any, Any] = table[range(len(row)), row.token_ids].numpy().astype(np.float32)
        return logprobs

    def padded(self, table: dict[tuple[str, int], Tensor], rows: Sequence[Row], batch: Batch) -> Tensor:
        width = batch.token_ids.shape[1]
        own = [table[row.trajectory_id, row.segment_index] for row in rows]
        return torch.stack([torch.cat([t, t.new_zeros(width - len(t), *t.shape[1:])]) for t in own])


def groups() -> list[list[Trajectory]]:
    """Two groups of unequal attempts: several segments, a summary, a cut attempt, observations at the end."""
    return [
        [
            trajectory("a", ["ppaaooaaos", "pccaa"], 1.0, seed=1),
            trajectory("b", ["paaaa"], 0.0, stop=Stop.CONTEXT_FULL, seed=5),
            trajectory("c", ["pao", "pa", "ppaaas"], 0.5, seed=9),
        ],
        [trajectory("d", ["paoooooaaa"], -1.0, seed=20), trajectory("e", ["ppa"], 2.0, seed=30)],
    ]


@every_variant
def test_no_cut_order_padding_or_rank_changes_the_loss(name: str, own: dict[str, Any]) -> None:
    """O4, invariant 7: one batch, rows alone, in pairs, reversed, padded, over 2, 3 and 4 ranks; sums too."""
    world = World(built(name, own), groups())
    rows = world.rows
    loss, grads, sums = world.total([rows])
    assert any(grad.any() for grad in grads)
    assert sums["policy/trusted_fraction"] > 2
    cuts = {
        "alone": world.total([[row] for row in rows]),
        "pairs": world.total([rows[k : k + 2] for k in range(0, len(rows), 2)]),
        "reversed": world.total([rows[::-1]]),
        "padded": world.total([rows], pad_to=37),
        **{f"{n} ranks": world.total(split_trajectories(rows, n)) for n in (2, 3, 4)},
    }
    for how, (cut_loss, cut_grads, cut_sums) in cuts.items():
        assert cut_loss == pytest.approx(loss, abs=1e-6), how
        assert cut_sums == pytest.approx(sums, rel=1e-5, abs=1e-6), how
        for grad, cut_grad in zip(grads, cut_grads, strict=True):
            assert float((grad - cut_grad).abs().max()) < 1e-6, how


@every_variant
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_stands_at_an_untrained_token_reaches_nothing(name: str, own: dict[str, Any], poison: float) -> None:
    """O3, invariant 8: every column poisoned where nothing trains, the advantage 1e9: same loss, gradient exactly 0."""
    world = World(built(name, own), groups())
    batch = collate(world.rows)
    clean = world.out(world.rows, batch).loss.item()
    at = ~batch.trained_mask
    columns = ("rollout_logprobs", "returns", "old_values", "teacher_logprobs", "advantages")
    dirty = {
        column: torch.where(at, 1e9 if column == "advantages" else poison, tensor)
        for column in columns
        if (tensor := getattr(batch, column)) is not None
    }
    batch = replace(batch, **dirty)
    ids = batch.token_ids.unsqueeze(-1)
    table = world.padded(world.logits, world.rows, batch).log_softmax(-1)
    logprobs = torch.where(at, poison, table.gather(-1, ids).squeeze(-1)).detach().requires_grad_()
    old = world.padded(world.old, world.rows, batch).log_softmax(-1).gather(-1, ids).squeeze(-1)
    top = None if batch.teacher_top_ids is None else table[batch.trained_at()].gather(-1, batch.teacher_top_ids)
    out = world.algorithm.loss(Forward(logprobs, torch.where(at, poison, old), top, version=5), batch)
    (grad,) = torch.autograd.grad(out.loss, logprobs, allow_unused=True, materialize_grads=True)
    assert out.loss.item() == pytest.approx(clean, abs=1e-12)
    assert not grad[at].any()
    assert torch.isfinite(grad).all()
    assert all(bool(torch.isfinite(value)) for value in out.sums.values())
    if world.algorithm.uses_critic:
        values = torch.full_like(batch.returns, poison).masked_fill(batch.trained_mask, 0.3).requires_grad_()
        critic = world.algorithm.critic_loss(values, batch)
        (grad,) = torch.autograd.grad(critic.loss, values)
        assert math.isfinite(critic.loss.item())
        assert not grad[at].any()


@every_variant
def test_a_batch_without_a_token_to_train_is_a_zero(name: str, own: dict[str, Any]) -> None:
    """O3, invariant 9: finite, exactly 0, with a graph."""
    world = World(built(name, own), groups())
    nothing = [replace(row, trained_mask=np.zeros_like(row.trained_mask)) for row in world.rows]
    loss, grads, sums = world.total([weigh(nothing, world.algorithm.reduction)])
    assert loss == 0.0
    assert not any(grad.any() for grad in grads)
    assert sums["policy/trusted_fraction"] == 0


@pytest.mark.parametrize("name", sorted(name for name, kind in ALGORITHMS.items() if not kind.demonstrates))
def test_credit_lies_on_each_segment_s_own_sampled_tokens(name: str) -> None:
    """O7: segments with 5, 2 and 1 sampled tokens at different places; a teacher's algorithm with its task's reward."""
    own = {"alpha": 1.0} if ALGORITHMS[name].uses_teacher else {}
    steps = trajectory("t", ["pppaaaaa", "paooa", "ppooopa"], 1.0)
    other = trajectory("u", ["pa"], 0.0, seed=7)
    world = World(built(name, own), [[steps, other]])
    credits = {(c.trajectory_id, c.segment_index): c for c in world.algorithm.credit([steps, other], world.extra)}
    for index, at in enumerate(([3, 4, 5, 6, 7], [1, 4], [6])):
        assert np.flatnonzero(credits["t", index].advantages).tolist() == at


PLAIN = [
    (name, {"reduction": reduction}) for name in sorted(ALGORITHMS) for reduction in ("token_mean", "rollout_mean")
]


@pytest.mark.parametrize(("name", "own"), PLAIN)
def test_a_rollout_of_more_segments_does_not_weigh_more(name: str, own: dict[str, Any]) -> None:
    """O2: one segment of 4 tokens and 4 of 1 token, |advantage| 1, at the sampling policy: .5 and .5, not .2 and .8."""
    pair = [trajectory("one", ["paaaa"], 1.0), trajectory("four", ["pa"] * 4, 0.0, seed=4)]
    world = World(built(name, own), [pair])
    batch = collate(world.rows)
    logprobs = batch.rollout_logprobs.double().requires_grad_()
    is_taught = world.algorithm.uses_teacher
    batch = replace(
        batch,
        advantages=torch.zeros_like(batch.advantages) if is_taught else torch.ones_like(batch.advantages),
        teacher_logprobs=batch.rollout_logprobs + 1.0 if is_taught else None,
    )
    out = world.algorithm.loss(Forward(logprobs, logprobs.detach(), version=3), batch)
    (grad,) = torch.autograd.grad(out.loss, logprobs)
    assert grad[0].sum().item() == pytest.approx(-0.5, abs=1e-6)
    assert grad[1:].sum().item() == pytest.approx(-0.5, abs=1e-6)


BANDED = [
    ("sao", {}), ("dis", {}), ("dis", {"form": "surrogate"}), ("grpo", {}), ("grpo", {"weight_mode": "mask"}),
    ("opd", {}),
    ("mopd", {"correction": "icepop"}), ("mopd", {"form": "topk", "k": 3, "correction": "icepop"}),
    ("compaction", {"objective": "dis"}), ("decoupled_ppo", {"cap_mode": "ratio"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "own"), BANDED)
def test_a_batch_outside_the_band_leaves_the_policy_where_it_is(name: str, own: dict[str, Any]) -> None:
    """O3, invariant 9, through a real model: stale log-probs 20 nats off; the step is skipped and counted."""
    world = World(built(name, own), [[trajectory("a", ["paa"], 1.0), trajectory("b", ["pa"], 0.0)]])
    batch = collate(world.rows)
    actor = Actor(tiny_glm())
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    top = None
    if batch.teacher_top_ids is None:
        logprobs = actor.logprobs(batch)
    else:
        logprobs, top = actor.logprobs_with_top(batch)
    batch.rollout_logprobs.copy_(logprobs.detach() - 20.0)
    out = world.algorithm.loss(Forward(logprobs, logprobs.detach(), top), batch)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in actor.parameters() if parameter.grad is not None)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=0.1)
    result, _ = optimizer_step(
        optimizer, actor.parameters(), num_trusted=int(out.sums["policy/trusted_fraction"]), max_grad_norm=1.0
    )
    assert result is StepResult.NOTHING_TRUSTED
    assert all(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))


def test_every_algorithm_is_found_by_its_name_and_none_by_another_s_settings() -> None:
    """A recipe finds the name of its algorithm by the type of the settings."""
    for name, kind in ALGORITHMS.items():
        settings = kind.Settings()
        assert (kind.name, settings.name, kind(settings).group_size) == (name, name, getattr(settings, "group_size", 1))
        assert [other for other, each in ALGORITHMS.items() if isinstance(settings, each.Settings)] == [name]

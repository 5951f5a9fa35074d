"""Padding, micro-batches and the invariances they must have, through a real GLM-4 model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_glm import tiny_glm, trajectory

from glmgym.errors import CaptureError
from glmgym.trajectory import NO_VERSION, Span, SpanKind, Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import Dis, DisSettings, Forward
from glmgym_trainers.batch import Row, collate, micro_batches, rows_of
from glmgym_trainers.credit import Credit
from glmgym_trainers.reductions import weigh

PATTERNS = ["ppaaoa", "pa", "pppaaaaaooaao", "ppoaoaa", "ppppaaaa"]


def credited(trajectories: Sequence[Trajectory]) -> list[Credit]:
    """Arbitrary advantages on sampled tokens."""
    random = np.random.default_rng(7)
    return [
        Credit(
            t.id,
            k,
            np.where(s.sampled_mask, random.normal(size=len(s)), 0).astype(np.float32),
            np.zeros(len(s), np.float32),
        )
        for t in trajectories
        for k, s in enumerate(t.segments)
    ]


def make_rows() -> list[Row]:
    trajectories = [trajectory(f"t{k}", [pattern], seed=k) for k, pattern in enumerate(PATTERNS)]
    return rows_of(trajectories, credited(trajectories))


def test_columns_are_aligned_with_their_tokens() -> None:
    """Two rows of 6 and 2 tokens: every column at the token it is about, padding unsampled and versionless."""
    rows = make_rows()[:2]
    batch = collate(rows)
    assert batch.trained_mask.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.token_ids[1].tolist() == [*rows[1].token_ids.tolist(), 0, 0, 0, 0]
    assert batch.versions.tolist() == [
        [NO_VERSION, NO_VERSION, 3, 3, NO_VERSION, 3],
        [NO_VERSION, 3] + [NO_VERSION] * 4,
    ]
    assert batch.rollout_logprobs[0].tolist() == rows[0].rollout_logprobs.tolist()
    assert batch.advantages[1].tolist() == [0.0, float(rows[1].advantages[1]), 0.0, 0.0, 0.0, 0.0]
    assert batch.positions[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert [index.tolist() for index in batch.trained_at()] == [[0, 0, 0, 1], [2, 3, 5, 1]]


def test_one_log_prob_too_many_is_an_error_that_names_the_trajectory() -> None:
    """P4: 208 log-probs for 207 tokens, at capture; and credit of 208 for 207 tokens, at the batch."""
    with pytest.raises(CaptureError, match="207 token ids came with 208 log-probs"):
        Span(SpanKind.ACTION, np.zeros(207, np.int32), np.full(208, -1, np.float32), np.zeros(207, np.int32))
    long = trajectory("t-17", ["p" + "a" * 206])
    column = np.zeros(208, np.float32)
    with pytest.raises(CaptureError, match="trajectory t-17 segment 0 has 207 tokens but credit for 208"):
        rows_of([long], [Credit("t-17", 0, column, column)])


def test_credit_for_someone_else_is_refused() -> None:
    column = np.zeros(2, np.float32)
    with pytest.raises(CaptureError, match="trajectory other segment 0, which is not in this batch"):
        rows_of([trajectory("t", ["pa"])], [Credit("other", 0, column, column)])
    with pytest.raises(CaptureError, match="segment 1, which is not"):
        rows_of([trajectory("t", ["pa"])], [Credit("t", 1, column, column)])
    with pytest.raises(CaptureError, match="was joined to trajectory t"):
        Row.of(trajectory("t", ["pa"]), 0, Credit("other", 0, column, column))


def test_a_segment_without_a_sampled_token_is_no_row() -> None:
    both = trajectory("t", ["ppp", "pa"])
    assert [(row.segment_index, len(row)) for row in rows_of([both], credited([both]))] == [(1, 2)]
    with pytest.raises(ValueError, match="at least one row"):
        collate([])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 60))
def test_micro_batches_keep_the_budget_and_lose_nothing(lengths: list[int], max_tokens: int) -> None:
    """Every row appears once; padded size stays in the budget unless one row alone exceeds it; longest first."""
    rows = [Row.of(trajectory(f"t{k}", ["p" + "a" * n]), 0) for k, n in enumerate(lengths)]
    parts = list(micro_batches(rows, max_tokens=max_tokens))
    assert sorted(row.trajectory_id for part in parts for row in part) == sorted(row.trajectory_id for row in rows)
    for part in parts:
        assert len(part) == 1 or len(part) * max(len(row) for row in part) <= max_tokens
    order = [len(row) for part in parts for row in part]
    assert order == sorted(order, reverse=True)


def gradient(actor: Actor, parts: Sequence[Sequence[Row]], *, pad_to: int = 0) -> tuple[float, torch.Tensor]:
    """Summed loss and gradient of DIS over micro-batches with the global token count."""
    actor.zero_grad()
    dis = Dis(DisSettings(group_size=2))
    weighted = iter(weigh([row for part in parts for row in part], "token_mean"))
    total = 0.0
    for part in parts:
        batch = collate([next(weighted) for _ in part], pad_to=pad_to)
        logprobs = actor.logprobs(batch)
        out = dis.loss(Forward(logprobs, logprobs.detach()), batch)
        out.loss.backward()
        total += out.loss.item()
    return total, torch.cat([p.grad.flatten() for p in actor.parameters() if p.grad is not None])


def by_ranks(world: int) -> Callable[[list[Row]], list[list[Row]]]:
    """What ``world`` ranks would see; the sum over them is what a SUM all-reduce computes."""
    return lambda rows: [rows[rank::world] for rank in range(world)]


@pytest.mark.parametrize(
    "cut",
    [
        by_ranks(2),
        by_ranks(4),
        lambda rows: [[row] for row in rows],
        lambda rows: [rows[:1], rows[1:4], rows[4:]],
        lambda rows: [rows[::-1]],
        lambda rows: list(micro_batches(rows, max_tokens=16)),
    ],
    ids=["2 ranks", "4 ranks", "one by one", "1-3-1", "permuted", "by budget"],
)
def test_the_gradient_does_not_depend_on_the_cut(cut: Callable[[list[Row]], list[list[Row]]]) -> None:
    """O4, invariant 7."""
    actor, rows = Actor(tiny_glm()), make_rows()
    loss, whole = gradient(actor, [rows])
    cut_loss, parts = gradient(actor, cut(rows))
    assert whole.abs().max() > 1e-3
    assert cut_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    """Invariant 7: 40 columns instead of 13."""
    actor, rows = Actor(tiny_glm()), make_rows()
    loss, whole = gradient(actor, [rows])
    assert [collate(rows, pad_to=width).token_ids.shape[1] for width in (0, 40)] == [13, 40]
    padded_loss, padded = gradient(actor, [rows], pad_to=40)
    assert padded_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(padded, whole, atol=1e-6, rtol=0)

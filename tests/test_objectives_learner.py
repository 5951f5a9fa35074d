"""Objectives inside a real update: which log-probs are old, what a group without signal reports, teachers in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_glm import VOCAB, segment, tiny_glm

from glmgym.scoring import TeacherScore
from glmgym.trajectory import Outcome, Reward, Stop, Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import Forward, Grpo, GrpoSettings, LossOut, Mopd, MopdSettings, Opd, OpdSettings
from glmgym_trainers.batch import Batch, Row, collate
from glmgym_trainers.learner import Learner
from glmgym_trainers.settings import TrainerSettings


def attempts(rewards: Sequence[float], group: str = "g") -> list[Trajectory]:
    patterns = ("ppaaooaa", "pppaaa", "paoooaaa", "paa")
    return [
        Trajectory(
            f"{group}{k}", "task", "env-v0", (segment(p, k),), Outcome(Stop.DONE, (Reward("r", r),)), group_id=group
        )
        for k, (p, r) in enumerate(zip(patterns, rewards, strict=True))
    ]


class Noting(Grpo):
    """GRPO that keeps what its loss was given."""

    def __init__(self, settings: GrpoSettings) -> None:
        super().__init__(settings)
        self.seen: list[tuple[Forward, Batch]] = []

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        self.seen.append((forward, batch))
        return super().loss(forward, batch)


def learner(algorithm: Any, **own: Any) -> Learner:
    return Learner(tiny_glm(), algorithm, TrainerSettings(**{"lr": 1e-2, **own}))


def test_old_log_probs_are_those_before_the_first_update() -> None:
    """3.3: in the second mini-batch the policy has moved and its ratio to the old one is no longer 1."""
    algorithm = Noting(GrpoSettings(beta=1e9, group_size=2))
    trainer = learner(algorithm, minibatches=2)
    report = trainer.step(attempts((1.0, 0.0, 1.0, 0.0)))
    (first, first_batch), (second, second_batch) = algorithm.seen
    untouched = Actor(tiny_glm())
    for forward, batch in ((first, first_batch), (second, second_batch)):
        with torch.no_grad():
            torch.testing.assert_close(forward.old_logprobs, untouched.logprobs(batch), atol=1e-5, rtol=0)
    gap = [float((f.logprobs - f.old_logprobs).detach()[b.trained_mask].abs().max()) for f, b in algorithm.seen]
    assert gap[0] < 1e-5
    assert gap[1] > 1e-3
    assert report.metrics["clip/abs_log_ratio"] > 1e-4
    assert report.metrics["optim/steps"] == 2.0


def test_a_single_update_is_its_own_old_policy() -> None:
    """3.3: no second forward is needed; the ratio is exactly 1, the version the learner's."""
    algorithm = Noting(GrpoSettings(beta=1e9, group_size=2))
    trainer = learner(algorithm)
    for _ in range(2):
        trainer.step(attempts((1.0, 0.0, 1.0, 0.0)))
    assert all(torch.equal(forward.logprobs, forward.old_logprobs) for forward, _ in algorithm.seen)
    assert [forward.version for forward, _ in algorithm.seen] == [0, 1]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [(((1, 0, 1, 0), (1, 1, 1, 1)), 0.5), (((0.1,) * 4, (0.7,) * 4), 1.0), (((1, 0, 1, 0),), 0.0)],
)
def test_groups_without_signal_are_reported(rewards: Sequence[Sequence[float]], expected: float) -> None:
    """3.2: the share of groups whose rewards are all equal."""
    batch = [each for k, own in enumerate(rewards) for each in attempts(own, group=f"g{k}")]
    report = learner(Grpo(GrpoSettings(beta=1e9, group_size=2))).step(batch)
    assert report.metrics["credit/zero_signal_fraction"] == expected
    assert "credit/zero_signal_fraction" not in learner(Opd(OpdSettings())).step([]).metrics


@pytest.mark.parametrize(
    "algorithm", [Opd(OpdSettings(beta=1e9)), Mopd(MopdSettings()), Mopd(MopdSettings(form="topk", k=-1))]
)
def test_a_twin_teacher_leaves_the_policy_and_another_moves_it(algorithm: Any) -> None:
    """O6, invariant 1: through a whole update at temperature 0.7; Adam's first moment is a tenth of the gradient."""
    batch, temperature = attempts((0.0, 0.0, 0.0, 0.0), group=""), 0.7
    for seed, is_twin in ((0, True), (1, False)):
        scores = taught(batch, Actor(tiny_glm(seed)), temperature)
        trainer = Learner(tiny_glm(), algorithm, TrainerSettings(lr=1e-2), temperature=temperature)
        trainer.step(batch, scores)
        moments = [state["exp_avg"].abs().max() for state in trainer.state()["actor_optimizer"]["state"].values()]
        assert float(max(moments)) < 1e-5 if is_twin else float(max(moments)) > 1e-3


def taught(batch: Sequence[Trajectory], teacher: Actor, temperature: float) -> dict[tuple[str, int], TeacherScore]:
    """The teacher's log-probs of each sampled token, and of the whole vocabulary there."""
    scores = {}
    for each in batch:
        rows = collate([Row.of(each, 0)])
        with torch.no_grad():
            logprobs = teacher.logprobs(rows, temperature)[0].numpy()
            logits = teacher.model(input_ids=rows.token_ids).logits[0] / temperature
        top = torch.zeros(len(logprobs), VOCAB)
        top[1:] = logits[:-1].log_softmax(-1)
        ids = np.tile(np.arange(VOCAB, dtype=np.int32), (len(logprobs), 1))
        scores[each.id, 0] = TeacherScore("teacher", logprobs, ids, top.numpy())
    return scores

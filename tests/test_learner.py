"""Laws of one update, on a real GLM-4 model small enough for tests."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tiny_glm import segment, tiny_glm
from torch import Tensor

from glmgym.trajectory import Outcome, Reward, Segment, Span, Stop, Trajectory
from glmgym_trainers.actor import ParityError
from glmgym_trainers.algorithms import Dis, DisSettings, Sao, SaoSettings
from glmgym_trainers.batch import Row, collate
from glmgym_trainers.learner import Learner
from glmgym_trainers.settings import TrainerSettings

PATTERNS = ("ppaaooaa", "pppaaa", "ppaoooaaa", "pa")


def _batch(rewards: tuple[float, ...] = (1.0, 0.0, 1.0, 0.0), group: str = "") -> list[Trajectory]:
    """Trajectories whose recorded log-probs are those of ``tiny_glm()`` at version 0."""
    learner = _learner(Sao(SaoSettings()))
    made = []
    for number, (pattern, reward) in enumerate(zip(PATTERNS, rewards, strict=True)):
        drawn = _trajectory(f"t{number}", segment(pattern, seed=number), reward, group)
        batch = collate([Row.of(drawn, 0)])
        with torch.no_grad():
            logprobs = learner.actor.logprobs(batch)[0].numpy()
        made.append(_trajectory(drawn.id, _recorded(drawn.segments[0], logprobs), reward, group))
    return made


def _trajectory(id: str, of: Segment, reward: float, group: str) -> Trajectory:
    return Trajectory(id, "task", "env-v0", (of,), Outcome(Stop.DONE, (Reward("r", reward),)), group_id=group)


def _recorded(of: Segment, logprobs: np.ndarray[Any, Any]) -> Segment:
    spans, at = [], 0
    for span in of.spans:
        if span.kind.is_sampled:
            own = logprobs[at : at + len(span)]
            spans.append(Span(span.kind, span.token_ids, own, np.zeros(len(span), np.int32)))
        else:
            spans.append(span)
        at += len(span)
    return Segment(tuple(spans))


def _learner(algorithm: Any, **settings: Any) -> Learner:
    return Learner(tiny_glm(), algorithm, TrainerSettings(**{"lr": 1e-2, **settings}))


def _sao(**settings: Any) -> Sao:
    return Sao(SaoSettings(**{"value_warmup": 0, **settings}))


def _moved(learner: Learner, before: dict[str, Tensor]) -> float:
    return max(float((tensor - before[name]).abs().max()) for name, tensor in learner.weights().items())


def test_warm_up_trains_the_critic_and_leaves_the_policy_bit_for_bit() -> None:
    learner = _learner(_sao(value_warmup=2))
    before, critic_before = learner.weights(), copy.deepcopy(learner.critic.state_dict())  # type: ignore[union-attr]
    for _ in range(2):
        learner.step(_batch())
    assert _moved(learner, before) == 0.0
    assert (learner.version, learner.step_count) == (0, 2)
    assert any(not torch.equal(v, critic_before[k]) for k, v in learner.critic.state_dict().items())  # type: ignore[union-attr]
    learner.step(_batch())
    assert _moved(learner, before) > 0
    assert learner.version == 1


def test_the_critic_steps_twice_for_each_policy_step() -> None:
    report = _learner(_sao()).step(_batch())
    assert report.metrics["critic_optim/steps"] == 2.0
    assert report.metrics["optim/steps"] == 1.0
    assert report.trained == {"t0": 4, "t1": 3, "t2": 4, "t3": 1}


def test_the_critic_starts_at_zero_and_learns_the_returns() -> None:
    """Returns are 1 on the 8 tokens of t0 and t2 and 0 on the 4 others: the squared error of 0 is 8/12."""
    learner = _learner(_sao(critic_updates=1, value_warmup=20))
    losses = [learner.step(_batch()).metrics["value/loss"] for _ in range(20)]
    assert losses[0] == pytest.approx(8 / 12)
    assert losses[-1] < losses[0] / 2


def test_versions_count_publications() -> None:
    learner = _learner(_sao(), sync_every=2)
    versions = []
    for _ in range(5):
        learner.step(_batch())
        versions.append(learner.version)
    assert versions == [0, 1, 1, 2, 2]


def test_nothing_trusted_leaves_the_policy_and_is_counted() -> None:
    """O3: every recorded log-prob is far from the policy's, so that the whole batch is outside the band."""
    far = [
        _trajectory(t.id, _recorded(t.segments[0], np.full(len(t.segments[0]), -30.0, np.float32)), 1.0, "")
        for t in _batch()
    ]
    learner = _learner(_sao(), weight_decay=0.1)
    before = learner.weights()
    report = learner.step(far)
    assert _moved(learner, before) == 0.0
    assert (report.metrics["optim/skipped_steps"], report.metrics["policy/trusted_fraction"]) == (1.0, 0.0)


def test_the_cut_into_micro_batches_does_not_change_the_update() -> None:
    """O4 through the whole learner, critic included: the same losses and the same gradients, to 1e-6.

    Adam's first moment after one step is (1 - beta) times the gradient. Weights are not compared: where a gradient is
    0, Adam turns rounding into a step of the learning rate's size.
    """
    learners = _learner(_sao()), _learner(_sao(), micro_batch_tokens=9)
    whole, cut = (learner.step(_batch()).metrics for learner in learners)
    for name in ("policy/loss", "value/loss", "policy/trusted_fraction"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-5, abs=1e-7), name
    for optimizer in ("actor_optimizer", "critic_optimizer"):
        moments = [learner.state()[optimizer]["state"] for learner in learners]
        assert moments[0]
        for index, moment in moments[0].items():
            torch.testing.assert_close(moments[1][index]["exp_avg"], moment["exp_avg"], atol=1e-6, rtol=1e-4)


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    first = _learner(_sao())
    first.step(_batch())
    second = _learner(_sao())
    second.actor.model.load_state_dict(first.weights())
    second.load_state(copy.deepcopy(first.state()))
    first.step(_batch())
    second.step(_batch())
    assert _moved(first, second.weights()) == 0.0
    assert first.critic is not None
    assert second.critic is not None
    restored = second.critic.state_dict()
    assert all(tensor.equal(restored[name]) for name, tensor in first.critic.state_dict().items())
    assert (second.step_count, second.version) == (2, 2)


def test_a_reset_optimiser_steps_like_a_fresh_one() -> None:
    """Adam's first step has the size of the learning rate whatever the gradient; with old moments it has not."""
    reset, kept = _learner(_sao(), reset_optimizer=True), _learner(_sao())
    for learner in (reset, kept):
        learner.step(_batch())
    fresh = Learner(copy.deepcopy(reset.actor.model), _sao(), TrainerSettings(lr=1e-2))
    fresh.critic.load_state_dict(reset.critic.state_dict())  # type: ignore[union-attr]
    for learner in (reset, fresh, kept):
        learner.step(_batch())
    assert _moved(reset, fresh.weights()) == 0.0
    assert _moved(kept, fresh.weights()) > 1e-4


def test_a_falling_learning_rate_reaches_its_end_with_the_last_step() -> None:
    falling = TrainerSettings(steps=4, lr=1e-2, lr_schedule="linear", lr_end=0.1)
    assert [falling.lr_at(step) for step in range(6)] == pytest.approx([1e-2, 7e-3, 4e-3, 1e-3, 1e-3, 1e-3])
    assert TrainerSettings(steps=1, lr=1e-2, lr_schedule="linear").lr_at(0) == 1e-2
    assert TrainerSettings(steps=4, lr=1e-2).lr_at(3) == 1e-2


def test_the_learning_rate_keeps_its_place_through_a_reset_of_the_optimiser_and_a_restart() -> None:
    """GLM-5, section 4.1: moments go, the schedule stays. Adam's first step has the size of the learning rate."""
    tuning = {"lr_schedule": "linear", "lr_end": 0.01, "steps": 2, "reset_optimizer": True}
    first = _learner(_sao(), **tuning)
    before = first.weights()
    assert first.step(_batch()).metrics["optim/lr"] == 1e-2
    assert _moved(first, before) == pytest.approx(1e-2, rel=0.01)
    second = _learner(_sao(), **tuning)
    second.actor.model.load_state_dict(first.weights())
    second.load_state(copy.deepcopy(first.state()))
    for learner in (first, second):
        before = learner.weights()
        assert learner.step(_batch()).metrics["optim/lr"] == pytest.approx(1e-4)
        assert _moved(learner, before) == pytest.approx(1e-4, rel=0.05)


def test_group_dis_trains_without_a_critic() -> None:
    learner = _learner(Dis(DisSettings(group_size=4, form="surrogate")))
    assert learner.critic is None
    before = learner.weights()
    report = learner.step(_batch(group="g"))
    assert _moved(learner, before) > 0
    assert report.metrics["policy/trusted_fraction"] == 1.0
    # Advantages +0.5 on 4 + 4 tokens and -0.5 on 3 + 1, at ratio 1: minus their mean over 12 tokens.
    assert report.metrics["policy/loss"] == pytest.approx(-2 / 12, abs=1e-5)
    equal = _learner(Dis(DisSettings(group_size=4)))
    equal.step(_batch((1.0, 1.0, 1.0, 1.0), group="g"))
    assert _moved(equal, before) < 1e-6  # equal rewards: no signal, and Adam sees no gradient


def test_parity_accepts_the_engine_s_own_numbers_and_refuses_others() -> None:
    """P5: before the first step; the message names the worst token, and no weight has moved."""
    learner, batch = _learner(_sao()), _batch()
    found = learner.parity(batch, bound=1e-4)
    assert found.num_tokens == 12
    assert found.max_abs < 1e-5
    with torch.no_grad():
        learner.actor.model.lm_head.weight.mul_(1.2)
    before = learner.weights()
    with pytest.raises(ParityError, match=r"t\d token \d+ \(id \d+\): rollout"):
        learner.parity(batch, bound=1e-4)
    assert _moved(learner, before) == 0.0

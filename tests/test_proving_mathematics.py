"""What the experiments compute beside the trainers: schedules, teachers' views, the naive recursion, comparisons."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glmgym.trajectory import Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory
from glmgym_trainers.algorithms import Extra, Forward
from glmgym_trainers.batch import Batch, collate, rows_of
from glmgym_trainers.learner import Learner
from glmgym_trainers.proving.arrivals import Attempt, Update, in_step, latencies, on_completion
from glmgym_trainers.proving.baselines import RunningMeanRl, RunningMeanSettings
from glmgym_trainers.proving.experiments.critic import attainable_variance
from glmgym_trainers.proving.experiments.skip_observation import Recursion, RecursionSettings
from glmgym_trainers.proving.games.families import CountRules
from glmgym_trainers.proving.games.hop import HopRules
from glmgym_trainers.proving.gpt import Shape, TinyGpt
from glmgym_trainers.proving.gradients import agreement, policy_gradient
from glmgym_trainers.proving.practice import Dealer, mean_weights, new_learner
from glmgym_trainers.proving.teaching import divergence, teach
from glmgym_trainers.proving.words import VOCABULARY
from glmgym_trainers.reductions import weigh

# Algorithm specification 5.5: a0 a0 | o o o | a1 | o o | a2 a2, here behind a prompt of one token.
MASK = [False, True, True, False, False, False, True, False, False, True, True]
VALUES = [0.0, 0.2, 0.3, 0.9, 0.9, 0.9, 0.4, -0.5, -0.5, 0.5, 0.6]


def trajectory(mask: list[bool], reward: float, *, id: str = "t", family: str = "") -> Trajectory:
    spans = []
    for token, is_sampled in enumerate(mask):
        ids = np.array([token % 7], np.int32)
        if is_sampled:
            columns = np.array([-1.0], np.float32), np.array([0], np.int32)
            spans.append(Span(SpanKind.ACTION, ids, *columns))
        else:
            spans.append(Span(SpanKind.OBSERVATION, ids))
    outcome = Outcome(Stop.DONE, (Reward("success", reward),))
    return Trajectory(id, "task", "env", (Segment(tuple(spans)),), outcome, family=family)


def recursion(**options: Any) -> Recursion:
    return Recursion(RecursionSettings.model_validate({"lam": 0.9, **options}))


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("actions", [0.60634, 0.5626, 0.514, 0.46, 0.4]),
        ("response", [0.4568208166, 0.396467574, 0.24534, 0.46, 0.4]),
    ],
)
def test_both_recursions_give_the_numbers_of_the_specification(over: str, expected: list[float]) -> None:
    """O1, 5.5: the naive one is the wrong vector there."""
    values = np.array([*VALUES, 0.0], np.float32)
    (credit,) = recursion(over=over).credit([trajectory(MASK, 1.0)], Extra({("t", 0): values}))
    assert credit.advantages[np.array(MASK)].tolist() == pytest.approx(expected, abs=1e-6)
    assert not credit.advantages[~np.array(MASK)].any()


@pytest.mark.parametrize(("critic_on", "expected"), [("actions", 0.1), ("response", 0.2025)])
def test_a_critic_learns_on_observations_where_it_is_told_to(critic_on: str, expected: float) -> None:
    """Tokens p a o o a o, reward 1: squared errors .04, .25, .36, .16 from a to a; the trailing one stays out."""
    mask = [False, True, False, False, True, False]
    own = recursion(critic_on=critic_on)
    (credit,) = own.credit([trajectory(mask, 1.0)], Extra({("t", 0): np.zeros(7, np.float32)}))
    batch = collate(weigh(rows_of([trajectory(mask, 1.0)], [credit]), "token_mean"))
    values = torch.tensor([[9.0, 0.8, 0.5, 0.4, 0.6, 9.0]])
    assert own.critic_loss(values, batch).loss.item() == pytest.approx(expected, abs=1e-6)


def one_token_batch(advantage: float) -> Batch:
    mask = [False, True]
    algorithm = RunningMeanRl(RunningMeanSettings.model_validate({}))
    (credit,) = algorithm.credit([trajectory(mask, advantage)], Extra())
    return collate(weigh(rows_of([trajectory(mask, advantage)], [credit]), "token_mean"))


@pytest.mark.parametrize(
    ("objective", "ratio", "advantage", "expected"),
    [
        ("dis", 3.9, 2.0, -7.8),
        ("dis", 4.1, 2.0, 0.0),
        ("dis", 0.19, 2.0, 0.0),
        ("unbounded", 4.1, 2.0, -8.2),
        ("unbounded", 100.0, -1.0, 100.0),
        ("none", 100.0, 2.0, -2.0),
        ("clip", 1.2, 2.0, -2.4),
        ("clip", 1.3, 2.0, 0.0),
        ("clip", 1.3, -2.0, 2.6),
    ],
)
def test_what_each_treatment_of_the_ratio_lets_through(
    objective: str, ratio: float, advantage: float, expected: float
) -> None:
    """The gradient on one token's log-prob: minus ratio times advantage where it is let through."""
    batch = one_token_batch(advantage)
    logprobs: Tensor = (batch.rollout_logprobs + math.log(ratio)).requires_grad_()
    algorithm = RunningMeanRl(RunningMeanSettings.model_validate({"objective": objective}))
    loss = algorithm.loss(Forward(logprobs, logprobs.detach()), batch).loss
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient[0, 1].item() == pytest.approx(expected, rel=1e-5)


def test_the_running_mean_is_that_of_earlier_rewards() -> None:
    algorithm = RunningMeanRl(RunningMeanSettings.model_validate({"window": 2}))
    group = [trajectory([False, True], reward, id=str(n)) for n, reward in enumerate((1.0, 0.0, 1.0, 1.0))]
    advantages = [credit.advantages[1] for credit in algorithm.credit(group, Extra())]
    assert advantages == [1.0, -1.0, 0.5, 0.5]  # baselines: none, 1, (1 + 0) / 2, (0 + 1) / 2


TIMES = np.array([4.0, 1.0, 1.0, 5.0, 1.0, 2.0, 9.0, 9.0])


def test_single_attempts_train_as_they_end() -> None:
    """Two slots. 1 ends at 1 and 2 at 2: a batch, so 3 starts at 2 under version 1. 0 ends at 4, 4 at 5: the next."""
    first, second = islice(on_completion(TIMES, slots=2, batch_size=2), 2)
    assert first == Update(2.0, (Attempt(1, 0), Attempt(2, 0)))
    assert second == Update(5.0, (Attempt(0, 0), Attempt(4, 1)))


def test_a_group_waits_for_its_last_member() -> None:
    """The same two slots: 0 and 1 are a group and complete at 4, 2 and 3 at 7; the second has a member of version 0."""
    first, second = islice(on_completion(TIMES, slots=2, batch_size=2, group_size=2), 2)
    assert first == Update(4.0, (Attempt(1, 0), Attempt(0, 0)))
    assert second == Update(7.0, (Attempt(2, 0), Attempt(3, 0)))


def test_in_step_all_wait_for_the_slowest_and_for_the_update() -> None:
    first, second = islice(in_step(TIMES, batch_size=2, update_time=0.5), 2)
    assert first == Update(4.0, (Attempt(0, 0), Attempt(1, 0)))
    assert second == Update(9.5, (Attempt(2, 1), Attempt(3, 1)))


def test_a_batch_is_made_of_whole_groups() -> None:
    with pytest.raises(ValueError, match="groups of 3"):
        next(on_completion(TIMES, slots=2, batch_size=4, group_size=3))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 4]))
def test_no_attempt_trains_twice_and_none_before_it_ended(seed: int, group_size: int) -> None:
    times = latencies(400, sigma=1.0, seed=seed)
    updates = list(on_completion(times, slots=8, batch_size=8, group_size=group_size))
    indices = [attempt.index for update in updates for attempt in update.attempts]
    assert len(set(indices)) == len(indices)
    for version, update in enumerate(updates):
        assert len(update.attempts) == 8
        assert all(attempt.version <= version for attempt in update.attempts)
        assert all(times[attempt.index] <= update.time + 1e-9 for attempt in update.attempts)
    assert [update.time for update in updates] == sorted(update.time for update in updates)


def test_latencies_have_the_median_that_is_said() -> None:
    times = latencies(20_001, sigma=1.0, seed=0)
    assert np.median(times) == pytest.approx(1.0, abs=0.03)
    assert times.mean() == pytest.approx(math.exp(0.5), rel=0.05)


@pytest.fixture(scope="module")
def pair() -> tuple[TinyGpt, TinyGpt]:
    torch.set_num_threads(1)
    models = [TinyGpt(Shape(len(VOCABULARY)), seed=seed) for seed in (1, 2)]
    for model in models:
        with torch.no_grad():
            model.base_model.embedding.weight.mul_(8.0)
    return models[0], models[1]


def test_a_teacher_that_is_the_student_has_nothing_to_say(pair: tuple[TinyGpt, TinyGpt]) -> None:
    """O6: its log-probs are those of the rollout, and the divergence is 0."""
    student, other = pair
    played = Dealer((HopRules(), CountRules()), 0).rollouts(student, 12)
    same, both = {"hop": student, "count": student}, {"hop": student, "count": other}
    scores = teach(same, played, top_k=5)
    for each in played:
        segment, score = each.segments[0], scores[each.id, 0]
        mask = segment.sampled_mask
        np.testing.assert_allclose(score.logprobs[mask], segment.logprobs[mask], atol=1e-5)
        assert score.top_ids is not None
        assert score.top_logprobs is not None
        assert score.top_ids.shape == (len(segment), 5)
        assert (np.diff(score.top_logprobs[1:]) <= 0).all()
    assert all(
        score.top_ids is not None and score.top_ids.shape[1] == len(VOCABULARY)
        for score in teach(same, played, top_k=-1).values()
    )
    assert divergence(student, same, played) == pytest.approx(0.0, abs=1e-6)
    assert divergence(student, both, played) > 0.1


def test_the_divergence_is_the_mean_over_sampled_tokens(pair: tuple[TinyGpt, TinyGpt]) -> None:
    student, teacher = pair
    played = Dealer((HopRules(),), 1).rollouts(student, 6)
    total, count = 0.0, 0
    for each in played:
        ids = torch.tensor(each.segments[0].token_ids.astype(np.int64))[None]
        with torch.no_grad():
            p, q = student(ids)[0].softmax(-1).double(), teacher(ids)[0].softmax(-1).double()
        for position in np.flatnonzero(each.segments[0].sampled_mask):
            total += float((p[position - 1] * (p[position - 1] / q[position - 1]).log()).sum())
            count += 1
    assert divergence(student, {"hop": teacher}, played) == pytest.approx(total / count, rel=1e-4)


def test_an_unknown_domain_has_no_default_teacher(pair: tuple[TinyGpt, TinyGpt]) -> None:
    played = Dealer((CountRules(),), 0).rollouts(pair[0], 2)
    with pytest.raises(KeyError, match="count"):
        teach({"hop": pair[1]}, played)


def test_weights_are_averaged(pair: tuple[TinyGpt, TinyGpt]) -> None:
    name = "base_model.norm.weight"
    first, second = (model.state_dict()[name] for model in pair)
    torch.testing.assert_close(mean_weights(pair)[name], (first + second) / 2)


def test_agreement_is_the_mean_cosine_of_all_pairs() -> None:
    """Two that agree, one across: 1, 0 and 0."""
    east, north = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 2.0])
    assert agreement([east, 2 * east, north]) == pytest.approx(1 / 3)
    assert agreement([east, -east]) == pytest.approx(-1.0)


def test_a_small_step_against_the_gradient_lowers_the_loss_by_its_square(pair: tuple[TinyGpt, TinyGpt]) -> None:
    """And asking for the gradient moves nothing."""
    played = Dealer((CountRules(spare=0, noise=0),), 3).rollouts(pair[0], 24)
    rewarded = [
        replace(each, outcome=Outcome(Stop.DONE, (Reward("success", float(n % 2)),))) for n, each in enumerate(played)
    ]

    def loss(learner: Learner) -> float:
        credits = RunningMeanRl(RunningMeanSettings.model_validate({})).credit(rewarded, Extra())
        batch = collate(weigh(rows_of(rewarded, credits), "token_mean"))
        with torch.no_grad():
            weighted = learner.actor.logprobs(batch) * batch.advantages * batch.weights
        return -float(weighted[batch.trained_mask].double().sum())

    learner = new_learner(pair[0], RunningMeanRl(RunningMeanSettings.model_validate({"objective": "none"})), lr=1e-3)
    before = learner.weights()
    gradient = policy_gradient(learner, rewarded)
    assert all(torch.equal(before[name], now) for name, now in learner.weights().items())
    start, size = loss(learner), 1e-3 / float(gradient.norm())
    with torch.no_grad():
        parts = gradient.split([parameter.numel() for parameter in learner.actor.parameters()])
        for parameter, part in zip(learner.actor.parameters(), parts, strict=True):
            parameter -= size * part.view_as(parameter)
    assert loss(learner) - start == pytest.approx(-size * float(gradient.square().sum()), rel=0.05)


def test_attainable_variance_is_that_between_levels() -> None:
    """Levels of success 3/4 and 1/4: a quarter of the variance, 1 - .1875 / .25."""
    rewards = {"hop1": (1.0, 1.0, 1.0, 0.0), "hop2": (0.0, 0.0, 0.0, 1.0)}
    played = [trajectory([False, True], r, family=level) for level, rs in rewards.items() for r in rs]
    assert attainable_variance(played) == pytest.approx(0.25)

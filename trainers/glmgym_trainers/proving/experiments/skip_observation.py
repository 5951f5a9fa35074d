"""``skip-observation``: whether a decisive first action gets the credit for a reward behind long observations (SAO)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms import Extra, Forward, LossOut
from glmgym_trainers.algorithms.actor_critic import ActorCritic, CriticSettings, prefix_values
from glmgym_trainers.algorithms.band import BandSettings, band_loss
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit, adaptive_lambda, critic_targets, skip_observation_gae
from glmgym_trainers.critic import score_prefixes
from glmgym_trainers.losses import value_loss
from glmgym_trainers.proving.cache import Cache, Weights
from glmgym_trainers.proving.experiment import Arm, Claim, Experiment, Panel, Record, difference, level, metric
from glmgym_trainers.proving.games import turning
from glmgym_trainers.proving.games.turning import TurningRules
from glmgym_trainers.proving.gpt import TinyGpt
from glmgym_trainers.proving.practice import (
    Dealer,
    evaluate,
    new_learner,
    policy_of,
    warm_critic,
    warm_key,
    warm_start,
)
from glmgym_trainers.proving.warm import Course, Stage

DECISIVE = 1  # of the first action's tokens, the one that chooses: "cat FILE END"
CRITIC_SEED = 90_003  # added to the seed, for the rollouts that its critic starts from
PROBE_SEED = 50_003  # added to the seed, for the rollouts on which credit is compared with the outcome


class RecursionSettings(CriticSettings, BandSettings):
    """Which tokens the advantage recursion runs over, with which lambda, and which of them the critic is trained on."""

    over: Literal["actions", "response"] = "actions"
    lam: float | None = None  # None: adaptive, from the length of what the recursion runs over
    critic_on: Literal["actions", "response"] = "actions"


class Recursion(ActorCritic):
    """An actor and a critic whose advantages come from one recursion, over the sampled tokens or over all tokens."""

    name = "recursion"

    def __init__(self, settings: RecursionSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        return [self._of(each, extra) for each in group]

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        return band_loss(self.settings, forward, batch)

    def critic_loss(self, values: Tensor, batch: Batch) -> LossOut:
        """Also on the observations where these are asked for: without discount they have the same target."""
        if self.settings.critic_on == "actions":
            return super().critic_loss(values, batch)
        trained = batch.trained_mask
        # From the first trained token to the last: what lies between is the response, observations included.
        response = trained.long().cumsum(1).bool() & trained.flip(1).long().cumsum(1).flip(1).bool()
        returns = torch.where(trained, batch.returns, 0.0).sum(1, keepdim=True) / trained.sum(1, keepdim=True)
        weights = 1.0 / response.sum()
        return LossOut(*value_loss(values, returns.expand_as(values), response, weights))

    def _of(self, trajectory: Trajectory, extra: Extra) -> Credit:
        own = self.settings
        sampled = trajectory.segments[0].sampled_mask
        values = prefix_values(extra, trajectory, 0)[:-1]
        rewards = np.zeros(len(sampled))
        last = int(np.flatnonzero(sampled)[-1])
        rewards[last] = trajectory.outcome.total()
        over = sampled
        if own.over == "response":
            over = np.arange(len(sampled)) >= int(sampled.argmax())
        lam = adaptive_lambda(int(over.sum()), own.alpha) if own.lam is None else own.lam
        advantages = skip_observation_gae(values, rewards, over, gamma=own.gamma, lam=lam)
        targets = critic_targets(values, rewards, sampled, gamma=own.gamma, lam=own.critic_lam)
        kept = np.where(sampled, advantages, 0.0).astype(np.float32)
        return Credit(trajectory.id, 0, kept, targets.astype(np.float32))


class SkipObservationExperiment(Settings):
    game: TurningRules = TurningRules()
    warm_steps: int = 300
    lam: float = 0.9  # of the arms with a fixed lambda
    critic_batches: int = 16
    probe_batches: int = 8
    probe_size: int = 64
    steps: int = 24
    batch_size: int = 64
    lr: float = 1e-3
    critic_lr: float = 2e-3
    eval_every: int = 4
    eval_episodes: int = 600


def _settings(own: SkipObservationExperiment, arm: str, *, value_warmup: int = 0) -> RecursionSettings:
    options: dict[str, dict[str, Any]] = {
        "skip": {"lam": own.lam},
        "naive": {"over": "response", "lam": own.lam},
        "naive-observed": {"over": "response", "lam": own.lam, "critic_on": "response"},
        "skip-adaptive": {},
        "naive-adaptive": {"over": "response"},
        "monte-carlo": {"lam": 1.0},
    }
    return RecursionSettings.model_validate({**options[arm], "value_warmup": value_warmup})


def _warm(own: SkipObservationExperiment, cache: Cache) -> tuple[TinyGpt, str]:
    course = Course(stages=(Stage(games=(own.game,), steps=own.warm_steps),))
    return warm_start(cache, "turning", course), warm_key(course)


def prepare(own: SkipObservationExperiment, cache: Cache) -> None:
    _warm(own, cache)


def run(own: SkipObservationExperiment, arm: str, seed: int, cache: Cache) -> Record:
    model, key = _warm(own, cache)
    settings = _settings(own, arm)
    teaching = Recursion(_settings(own, arm, value_warmup=own.critic_batches))
    critic = warm_critic(
        cache,
        f"turning-critic-{settings.critic_on}-{seed}",
        key,
        model,
        teaching,
        (own.game,),
        seed=CRITIC_SEED + seed,
        batch_size=own.batch_size,
        lr=own.critic_lr,
    )
    metrics = {"credit_correlation": _probe(own, settings, model, critic, seed)}
    learner = new_learner(model, Recursion(settings), lr=own.lr, critic_lr=own.critic_lr, critic=critic)
    dealer = Dealer((own.game,), seed)
    curve = []
    for step in range(own.steps + 1):
        if step % own.eval_every == 0 or step == own.steps:
            score = evaluate(policy_of(learner), (own.game,), episodes=own.eval_episodes, seed=seed)
            curve.append({"step": float(step), "success": score.success})
        if step < own.steps:
            learner.step(dealer.rollouts(policy_of(learner), own.batch_size, version=step))
    metrics["success"] = curve[-1]["success"]
    metrics["mean_success"] = sum(point["success"] for point in curve[1:]) / len(curve[1:])
    return Record(metrics, curve)


def _probe(
    own: SkipObservationExperiment, settings: RecursionSettings, model: TinyGpt, critic: Weights, seed: int
) -> float:
    """Correlation of the decisive token's advantage with the outcome, over rollouts of the frozen warm policy."""
    learner = new_learner(model, Recursion(settings), lr=own.lr, critic=critic)
    assert learner.critic is not None
    dealer = Dealer((own.game,), PROBE_SEED + seed)
    credited, outcomes = [], []
    for _ in range(own.probe_batches):
        played = dealer.rollouts(model, own.probe_size)
        extra = Extra(score_prefixes(learner.critic, played, max_tokens=1 << 16))
        for each, credit in zip(played, learner.algorithm.credit(played, extra), strict=True):
            at = np.flatnonzero(each.segments[0].sampled_mask)[DECISIVE]
            credited.append(float(credit.advantages[at]))
            outcomes.append(each.outcome.total())
    return float(np.corrcoef(credited, outcomes)[0, 1])


EXPERIMENT = Experiment(
    name="skip-observation",
    claim=(
        "Under a fixed lambda, bridging observations in the advantage recursion gives an early action the credit for a "
        "late reward, and running it through the observations does not."
    ),
    setting=(
        "The game `turning`: the first action chooses one of two files, of which a word in the task says which is "
        "right; then come two observations of 20 words of noise, each followed by an action that the policy always "
        "gets right; the reward at the very end says whether the choice was right. Imitation taught a random choice. "
        "The probe computes, on the same rollouts of the frozen warm policy, the advantage of the token that chooses, "
        "and correlates it with the outcome. Each seed has a critic of its own from one pass over 16 fresh batches. "
        "Then each arm reinforces with its own advantages; everything else is equal. The warm start is shared."
    ),
    tried=(
        "A game in which the whole episode decides (`hop`) shows the correlation but no difference in learning: the "
        "later actions carry most of the gradient there. This game has one decision.",
    ),
    settings=SkipObservationExperiment,
    quick={"steps": 4, "probe_batches": 4, "critic_batches": 8, "eval_episodes": 400},
    arms=(
        Arm("skip", "recursion over sampled tokens, lambda 0.9"),
        Arm("naive", "recursion over all tokens, lambda 0.9, critic trained on sampled tokens"),
        Arm("naive-observed", "as naive, critic trained on observations too"),
        Arm("skip-adaptive", "recursion over sampled tokens, lambda from their number"),
        Arm("naive-adaptive", "recursion over all tokens, lambda from their number"),
        Arm("monte-carlo", "lambda 1: every recursion gives the same"),
    ),
    claims=(
        Claim(
            "Skip-Observation GAE credits the first action with the outcome.",
            "correlation, skip",
            level("credit_correlation", "skip"),
            above=0.5,
            gate=True,
        ),
        Claim(
            "Under the naive recursion that credit says little about the outcome.",
            "0.3 - size of the correlation, naive",
            lambda records: 0.3 - abs(metric(records, "naive", "credit_correlation")),
            gate=True,
        ),
        Claim(
            "The two are far apart on the same rollouts.",
            "correlation, skip - naive",
            difference("credit_correlation", "skip", "naive"),
            above=0.3,
            gate=True,
        ),
        Claim(
            "Training the critic on observations does not mend it.",
            "correlation, skip - naive-observed",
            difference("credit_correlation", "skip", "naive-observed"),
        ),
        Claim(
            "The policy learns faster with it.",
            "mean success while learning, skip - naive",
            difference("mean_success", "skip", "naive"),
        ),
        Claim(
            "Also where the critic sees observations.",
            "mean success while learning, skip - naive-observed",
            difference("mean_success", "skip", "naive-observed"),
        ),
        Claim(
            "Under the adaptive lambda skipping still matters.",
            "mean success while learning, skip-adaptive - naive-adaptive",
            difference("mean_success", "skip-adaptive", "naive-adaptive"),
        ),
    ),
    metrics={
        "credit_correlation": "correlation of the first action's credit with the outcome",
        "success": "success after the last step",
        "mean_success": "mean success while learning",
    },
    panels=(Panel("step", "success", "policy updates", "success"),),
    run=run,
    prepare=prepare,
    modules=(sys.modules[__name__], turning),
)

"""How an experiment trains and measures: dealt episodes, the trainers' own ``Learner``, and success on fresh games."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch

from glmgym.trajectory import Trajectory
from glmgym_trainers import credit, learner, losses, reductions
from glmgym_trainers.algorithms import Algorithm
from glmgym_trainers.learner import Learner
from glmgym_trainers.proving import episode as episode_module
from glmgym_trainers.proving import gpt, lockstep, warm, words
from glmgym_trainers.proving.cache import Cache, Weights, digest
from glmgym_trainers.proving.episode import Compaction, Episode, Games, deal
from glmgym_trainers.proving.gpt import Shape, TinyGpt
from glmgym_trainers.proving.lockstep import play
from glmgym_trainers.proving.warm import Course, imitate
from glmgym_trainers.proving.words import VOCABULARY
from glmgym_trainers.settings import TrainerSettings

LEARNING = (credit, learner, losses, reductions, lockstep)  # modules that decide what a learner makes of a policy
EVALUATION = 1_000_003  # added to a seed for the games and the sampling of evaluations, which no training sees


class Dealer:
    """A stream of episodes and sampling seeds that depends on one seed alone, so that arms of an experiment pair."""

    def __init__(self, games: Games, seed: int, compaction: Compaction | None = None) -> None:
        self._games = games
        self._random = Random(seed)
        self._compaction = compaction
        self._count = 0

    def episodes(self, count: int, *, group_size: int = 1) -> list[Episode]:
        """``count`` episodes; each game is dealt to ``group_size`` of them in a row, which form a group."""
        dealt: list[Episode] = []
        while len(dealt) < count:
            game = deal(self._games, self._random)
            group = f"group-{self._count}" if group_size > 1 else ""
            for _ in range(group_size):
                own = copy.deepcopy(game)
                dealt.append(Episode(f"episode-{self._count}", own, self._compaction, group_id=group))
                self._count += 1
        return dealt

    def sampling_seed(self) -> int:
        return self._random.getrandbits(48)

    def rollouts(self, model: TinyGpt, count: int, *, version: int = 0) -> list[Trajectory]:
        """Fresh episodes played by the model."""
        return play(model, self.episodes(count), seed=self.sampling_seed(), version=version)


@dataclass(frozen=True, slots=True)
class Score:
    """What an evaluation found, as shares of its episodes."""

    success: float
    compacted: float  # episodes with at least one compaction
    by_family: dict[str, float]


def evaluate(model: TinyGpt, games: Games, *, episodes: int, seed: int, compaction: Compaction | None = None) -> Score:
    """Success at temperature 1 on games that depend on ``seed`` alone and differ from all that a training sees."""
    dealer = Dealer(games, EVALUATION + seed, compaction)
    played = dealer.rollouts(model, episodes)
    families: dict[str, list[float]] = {}
    for each in played:
        families.setdefault(each.family, []).append(each.outcome.total())
    return Score(
        success=float(np.mean([each.outcome.total() for each in played])),
        compacted=float(np.mean([len(each.segments) > 1 for each in played])),
        by_family={family: float(np.mean(rewards)) for family, rewards in sorted(families.items())},
    )


def new_learner(
    model: TinyGpt, algorithm: Algorithm, *, lr: float, critic_lr: float = 2e-3, critic: Weights | None = None
) -> Learner:
    """A learner that starts from a copy of ``model`` and, if given, from a critic trained before."""
    settings = TrainerSettings(lr=lr, critic_lr=critic_lr, micro_batch_tokens=1 << 16)
    new = Learner(copy.deepcopy(model), algorithm, settings)
    if critic is not None:
        assert new.critic is not None
        new.critic.load_state_dict(critic)
    return new


def policy_of(owner: Learner) -> TinyGpt:
    """The live policy, as rollouts use it."""
    model: TinyGpt = owner.actor.model
    return model


def warm_start(cache: Cache, name: str, course: Course) -> TinyGpt:
    """The policy that a course makes, from the cache if it was made before."""
    return with_weights(cache.weights(name, warm_key(course), lambda: imitate(course).state_dict()))


def warm_key(course: Course) -> str:
    """The digest of a course, its games' code and the code that teaches it."""
    kinds = {sys.modules[type(rules).__module__] for stage in course.stages for rules in stage.games}
    return digest(course, gpt, words, episode_module, warm, *sorted(kinds, key=lambda module: module.__name__))


def warm_critic(
    cache: Cache,
    name: str,
    key: str,
    model: TinyGpt,
    algorithm: Algorithm,
    games: Games,
    *,
    seed: int,
    batch_size: int,
    lr: float,
    compaction: Compaction | None = None,
) -> Weights:
    """A critic of the frozen warm policy: one pass over fresh rollouts, as SAO's cold start.

    Args:
        key: of the policy.
        algorithm: its ``value_warmup`` is the number of batches, in all of which the policy rests.
        seed: of the rollouts.
    """
    batches = algorithm.value_warmup

    def make() -> Weights:
        teaching, dealer = new_learner(model, algorithm, lr=lr, critic_lr=lr), Dealer(games, seed, compaction)
        for _ in range(batches):
            teaching.step(dealer.rollouts(model, batch_size))
        assert teaching.critic is not None
        return teaching.critic.state_dict()

    numbers = batches, algorithm.critic_updates, algorithm.freeze, algorithm.reduction, batch_size, lr
    return cache.weights(name, digest(key, algorithm.name, games, seed, compaction, numbers, *LEARNING), make)


def with_weights(weights: Weights) -> TinyGpt:
    """A policy of the default shape with these weights."""
    model = TinyGpt(Shape(len(VOCABULARY)))
    model.load_state_dict(weights)
    return model


def mean_weights(models: Sequence[TinyGpt]) -> Weights:
    """The plain average of several policies' weights."""
    states = [model.state_dict() for model in models]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}

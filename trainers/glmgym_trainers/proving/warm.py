"""Warm starts: policies that imitate demonstrators who err, so that reinforcement has something to remove.

Capability and choice are kept apart: a course of stages, clean ones first, teaches to read; the errors of the later
stages are the choices that a few updates of reinforcement can unlearn.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from glmgym.settings import Settings
from glmgym_trainers.proving.episode import Compaction, Games, deal, demonstration
from glmgym_trainers.proving.gpt import Shape, TinyGpt
from glmgym_trainers.proving.words import PAD, VOCABULARY

IGNORED = -100  # the target of a token that nobody imitates


class Stage(Settings):
    """Imitate the demonstrators of some games for some steps."""

    games: Games
    steps: int
    compaction: Compaction | None = None


class Course(Settings):
    """Stages in order, by Adam with a rate that falls to a tenth; together with the code, all that makes the policy."""

    stages: tuple[Stage, ...]
    seed: int = 0  # of the initial weights and of the demonstrations
    batch_size: int = 64  # episodes
    lr: float = 3e-3


def imitate(course: Course) -> TinyGpt:
    """A new policy after the course: cross-entropy on the demonstrators' own tokens."""
    model = TinyGpt(Shape(len(VOCABULARY)), seed=course.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=course.lr, betas=(0.9, 0.98))
    total = sum(stage.steps for stage in course.stages)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.1 + 0.45 * (1.0 + math.cos(math.pi * step / total)))
    )
    random = Random(course.seed)
    for stage in course.stages:
        for _ in range(stage.steps):
            ids, targets = _batch(stage, random, course.batch_size)
            loss = functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model


def _batch(stage: Stage, random: Random, batch_size: int) -> tuple[Tensor, Tensor]:
    """Contexts [B, T] and at each position the token to say next, [B, T]."""
    games = [deal(stage.games, random) for _ in range(batch_size)]
    segments = [s for game in games for s in demonstration(game, random, stage.compaction).segments]
    width = max(len(segment) for segment in segments)
    ids = np.full((len(segments), width), PAD)
    targets = np.full((len(segments), width), IGNORED)
    for row, segment in enumerate(segments):
        tokens = segment.token_ids
        ids[row, : len(tokens)] = tokens
        targets[row, : len(tokens) - 1] = np.where(segment.sampled_mask, tokens, IGNORED)[1:]
    return torch.from_numpy(ids), torch.from_numpy(targets)

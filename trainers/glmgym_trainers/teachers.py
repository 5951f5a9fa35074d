"""Teachers from a recipe: which checkpoint teaches which domain, loaded once each, and how far the student is from it.

Routing and scoring are ``glmgym.scoring``'s; this file owns what needs models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, field_validator

from glmgym.errors import ConfigError
from glmgym.events import TeacherChecked
from glmgym.metrics import Mean, merge, values
from glmgym.scoring import Teacher, Teachers, TeacherScore
from glmgym.settings import Settings
from glmgym.store import TrajectoryStore
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms import Algorithm
from glmgym_trainers.distillation import FLOOR
from glmgym_trainers.engines import PrefillScorer
from glmgym_trainers.policy import Policy, load_policy, resolve


class TeachersSettings(Settings):
    """Which frozen checkpoint scores the trajectories of which domain; there is no default teacher."""

    routes: dict[str, str] = Field(default_factory=dict)  # task domain = checkpoint, named as in [policy] init
    max_initial_kl: float = Field(default=0.1, gt=0)  # nats a token; warns above. MOPD: 0.04 healthy, 0.19 collapsed
    max_running: int = Field(default=4, ge=1)  # texts that one teacher is asked about at once
    timeout_s: float = Field(default=600.0, gt=0)  # for one text

    @field_validator("routes")
    @classmethod
    def _are_named(cls, value: dict[str, str]) -> dict[str, str]:
        if "" in value:
            raise ValueError("a route needs the name of a domain: tasks without one have no teacher")
        return value


def load_teachers(
    settings: TeachersSettings, student: Policy, algorithm: Algorithm, *, context_length: int, temperature: float
) -> Teachers | None:
    """The teachers that ``algorithm`` learns from, None if it uses none. Each distinct checkpoint is loaded once.

    Raises:
        ConfigError: there is no such checkpoint, or it differs from the student in its tokenizer, the size of its
            vocabulary, or a context too short for what is rolled out.
    """
    if not algorithm.uses_teacher:
        return None
    loaded: dict[Path, Teacher] = {}
    for name in settings.routes.values():
        directory = resolve(name).resolve()
        if directory not in loaded:
            loaded[directory] = _load(name, student, context_length)
    return Teachers(
        {domain: loaded[resolve(name).resolve()] for domain, name in settings.routes.items()},
        student=student.chat.tokenizer,
        temperature=temperature,
        top_k=algorithm.teacher_top_k,
        max_running=settings.max_running,
        timeout_s=settings.timeout_s,
    )


async def forget_discarded(teachers: Teachers, store: TrajectoryStore) -> None:
    """Drop the scores of what the trainer will never take, such as trajectories that grew too old while they waited."""
    held = teachers.held  # first: what ends and is submitted while the store is read is in neither
    ready = {row.id for row in await asyncio.to_thread(store.ready)}
    teachers.forget(held - ready)


def teacher_numbers(batch: Sequence[Trajectory], scores: Mapping[tuple[str, int], TeacherScore]) -> dict[str, float]:
    """``teacher/kl``, and ``teacher/kl/DOMAIN`` for each domain of the batch: nats a sampled token.

    The mean of the rollout's log-prob minus the teacher's, an estimate of KL(student || teacher) for the student that
    sampled the batch.
    """
    gaps = list(_gaps(batch, scores))
    parts = [{"teacher/kl": gap, f"teacher/kl/{trajectory.domain}": gap} for trajectory, _, gap in gaps]
    return values(merge(parts))


def check_teachers(
    batch: Sequence[Trajectory], scores: Mapping[tuple[str, int], TeacherScore], *, bound: float
) -> list[TeacherChecked]:
    """How far each teacher is from the student that sampled the batch, by the teacher's name."""
    gaps = merge({teacher: gap} for _, teacher, gap in _gaps(batch, scores))
    return [
        TeacherChecked(teacher, gap.value, int(gap.count), bound)
        for teacher, gap in sorted(gaps.items())
        if isinstance(gap, Mean)
    ]


def _gaps(
    batch: Sequence[Trajectory], scores: Mapping[tuple[str, int], TeacherScore]
) -> Iterator[tuple[Trajectory, str, Mean]]:
    """Each scored segment's trajectory, teacher and mean log-ratio over its sampled tokens."""
    for trajectory in batch:
        for index, segment in enumerate(trajectory.segments):
            score = scores.get((trajectory.id, index))
            if score is not None:
                gaps = segment.logprobs - np.maximum(score.logprobs, FLOOR)
                yield trajectory, score.teacher, Mean(float(gaps[segment.sampled_mask].sum()), segment.num_sampled)


def _load(name: str, student: Policy, context_length: int) -> Teacher:
    policy = load_policy(name)
    theirs, ours = policy.model.config.vocab_size, student.model.config.vocab_size
    if theirs != ours:
        raise ConfigError(
            f"teacher {name!r} has a vocabulary of {theirs} ids, the student one of {ours}: their distributions are "
            "over different sets; learning token by token needs a teacher of the same base"
        )
    scorer = PrefillScorer(policy.model)
    if scorer.context_length < context_length:
        raise ConfigError(
            f"teacher {name!r} has {scorer.context_length} positions: too few for [policy] context_length = "
            f"{context_length}"
        )
    return Teacher(name, scorer, policy.chat.tokenizer)

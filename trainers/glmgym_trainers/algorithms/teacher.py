"""What distillation algorithms share: the task's own advantage, and the check that a teacher scored everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from glmgym.errors import GlmgymError
from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Extra
from glmgym_trainers.algorithms.group import spread
from glmgym_trainers.credit import Credit, group_mean_advantage
from glmgym_trainers.reductions import Reduction


class TeacherSettings(Settings):
    """How much the task's own reward counts beside the teacher."""

    group_size: int = Field(1, ge=1)  # attempts of one task; published for both OPD and MOPD
    alpha: float = Field(0.0, ge=0)  # of the task's advantage; 0 distils only, and needs no reward
    task_baseline: Literal["none", "group"] = "none"  # what that advantage is the reward's distance from; ours
    reduction: Reduction = "seq_mean"  # GLM-5 equation 1; MOPD equation 4

    @model_validator(mode="after")
    def _has_an_advantage(self) -> TeacherSettings:
        if self.alpha > 0 and self.task_baseline == "group" and self.group_size == 1:
            raise ValueError("task_baseline = 'group' with group_size = 1 gives every attempt the advantage 0")
        return self


def taught_credit(own: TeacherSettings, group: Sequence[Trajectory], extra: Extra, *, top_k: int) -> list[Credit]:
    """``alpha`` times the task's advantage for every sampled token. The teacher's part comes in the loss.

    Raises:
        GlmgymError: no teacher scored a segment, or scored another number of tokens or of likeliest tokens; or an
            attempt was not graded although its reward counts.
    """
    taught = [each for each in group if each.outcome.is_valid]
    for trajectory in taught:
        for index, segment in enumerate(trajectory.segments):
            if segment.num_sampled:
                _check(extra, trajectory, index, top_k)
    if own.alpha == 0.0 or not taught:
        return [credit for each in taught for credit in spread(each, 0.0)]
    rewards = [each.outcome.total() for each in taught]
    if own.task_baseline == "group":
        rewards = group_mean_advantage(rewards).tolist()
    pairs = zip(taught, rewards, strict=True)
    return [credit for each, advantage in pairs for credit in spread(each, own.alpha * advantage)]


def _check(extra: Extra, trajectory: Trajectory, index: int, top_k: int) -> None:
    score = extra.teachers.get((trajectory.id, index))
    expected = len(trajectory.segments[index])
    where = f"trajectory {trajectory.id} segment {index}"
    if score is None or len(score.logprobs) != expected:
        got = "none" if score is None else str(len(score.logprobs))
        raise GlmgymError(f"{where} needs a teacher's log-probs of {expected} tokens, got {got}")
    given = 0 if score.top_ids is None else score.top_ids.shape[1]
    if top_k and (given == 0 or given > top_k > 0):
        wanted = "all" if top_k < 0 else f"up to {top_k}"
        raise GlmgymError(f"{where} needs {wanted} of the likeliest tokens of {score.teacher!r}, got {given}")

"""Credit from a group of attempts at one task, shared by the algorithms that compare attempts and have no critic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from glmgym.settings import Settings
from glmgym.trajectory import Trajectory
from glmgym_trainers.credit import Credit, fill_group, group_mean_advantage, group_scaled_advantage


class GroupSettings(Settings):
    """How a group's rewards become advantages."""

    group_size: int = Field(8, ge=1)  # attempts of one task; ours
    fill: Literal["repeat", "none"] = "repeat"  # GLM-5 repeats valid attempts in place of failed ones
    baseline: Literal["originals", "filled"] = "originals"  # mean over which list: not disclosed; ours
    scale: Literal["none", "std"] = "none"  # divide by the group's deviation: GLM-5's reasoning RL does, agentic not
    ddof: Literal[0, 1] = 1  # of that deviation: not disclosed; slime's
    eps: float = Field(1e-6, ge=0)  # added to that deviation: not disclosed; slime's
    overlong: Literal["reward", "mask"] = "reward"  # mask: attempts cut by a limit vote but don't train; not disclosed


def group_credit(own: GroupSettings, group: Sequence[Trajectory]) -> list[Credit]:
    """The same advantage for every sampled token of an attempt: its reward against those of its group.

    Nothing unless more than half of ``group_size`` is valid. A failed attempt has no credit and no vote, whether it is
    here as a failed one or missing.

    Raises:
        GlmgymError: an attempt was not graded.
    """
    missing = [False] * (own.group_size - len(group))
    members = fill_group([*(each.outcome.is_valid for each in group), *missing])
    if not members:
        return []
    originals = list(dict.fromkeys(members))
    voters = originals if own.baseline == "originals" else members
    rewards = [group[index].outcome.total() for index in voters]
    if own.scale == "std":
        advantages = group_scaled_advantage(rewards, ddof=own.ddof, eps=own.eps)
    else:
        advantages = group_mean_advantage(rewards)
    advantage = dict(zip(voters, advantages.tolist(), strict=True))
    copies = Counter(members if own.fill == "repeat" else originals)
    credits = []
    for index in originals:
        is_masked = own.overlong == "mask" and group[index].outcome.stop.is_truncated
        credits += spread(group[index], advantage[index], copies=copies[index], is_trained=not is_masked)
    return credits


def spread(trajectory: Trajectory, advantage: float, *, copies: int = 1, is_trained: bool = True) -> list[Credit]:
    """The same advantage on every sampled token of every segment; no token trains if ``is_trained`` is false."""
    credits = []
    for index, segment in enumerate(trajectory.segments):
        sampled = segment.sampled_mask
        advantages = np.where(sampled, advantage, 0.0).astype(np.float32)
        trained = None if is_trained else np.zeros_like(sampled)
        credits.append(Credit(trajectory.id, index, advantages, np.zeros_like(advantages), trained, copies))
    return credits

"""The contract of a reward component, and how components join what the environment's own scorer returns.

Owned here: names, weights, and the rule that somebody must grade the task itself. A component that cannot tell raises;
that is a failure of the attempt, never a reward of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import Field

from glmgym.env import ScoreView
from glmgym.errors import ConfigError, ScorerFailure, boundary, did_you_mean
from glmgym.settings import Settings
from glmgym.trajectory import Reward


class ComponentSettings(Settings):
    """What every reward component says of itself."""

    name: str = Field(pattern=r"^[\w.-]+$")  # of the reward, in records and reports
    weight: float = Field(1.0, allow_inf_nan=False)  # of its value in the sum; negative for a penalty
    shaping: bool = False  # style, brevity, penalties: trained, but no part of the task's outcome

    def reward(self, value: float, *, source: str, version: str, reason: str = "") -> Reward:
        """The record of one value."""
        return Reward(self.name, value, self.weight, source, version, reason, self.shaping)


class Component(Protocol):
    """One further reward of every episode. ``name`` is that of the reward it gives."""

    name: str

    async def __call__(self, view: ScoreView) -> Reward:
        """Grade the episode; raise when it cannot be graded. Several episodes may be graded at once."""
        ...

    async def close(self) -> None:
        """Give back what it holds. Most hold nothing."""
        return


@dataclass(frozen=True, slots=True)
class RewardMix:
    """What a run adds to every environment's own rewards.

    ``weights`` replace the weights of the environment's own rewards, by name.
    """

    components: tuple[Component, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    async def grade(self, own: Sequence[Reward], view: ScoreView) -> tuple[Reward, ...]:
        """The environment's rewards, reweighted, then one of each component. The components work at the same time.

        Raises:
            ConfigError: a weight is for a reward that the environment does not give, or two rewards share a name.
            BoundaryFailure: a component could not tell, or no reward is about the task's outcome.
        """
        names = [reward.name for reward in own]
        for name in self.weights:
            if name not in names:
                raise ConfigError(f"[rewards.weights] {name}: no such reward was given{did_you_mean(name, names)}")
        for component in self.components:
            if component.name in names:
                raise ConfigError(f"[rewards] {component.name}: the environment gives a reward of this name; rename it")
        weighed = [replace(reward, weight=self.weights.get(reward.name, reward.weight)) for reward in own]
        added = await _all([_attributed(component, view) for component in self.components])
        rewards = (*weighed, *added)
        if all(reward.shaping for reward in rewards):
            given = ", ".join(reward.name for reward in rewards)
            raise ScorerFailure(f"score {view.task.id}: every reward is shaping ({given}): nothing grades the task")
        return rewards

    async def close(self) -> None:
        """Close every component."""
        for component in self.components:
            await component.close()


async def _attributed(component: Component, view: ScoreView) -> Reward:
    with boundary(ScorerFailure, f"reward {component.name} of {view.task.id}"):
        return await component(view)


async def _all(work: Sequence[Coroutine[Any, Any, Reward]]) -> list[Reward]:
    """Every result in order; the first that fails, or a cancellation, ends the others too."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

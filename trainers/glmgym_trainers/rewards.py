"""The ``[rewards]`` table of a recipe: what is added to the environment's own rewards, and how they are weighted."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Self

from pydantic import Field, model_validator

from glmgym.errors import ConfigError
from glmgym.rewards import Anchor, AnchorSettings, Component, Judge, JudgeSettings, RewardMix, Rule, RuleSettings
from glmgym.settings import Settings
from glmgym_trainers.reward_model import RewardModel, RewardModelSettings

Weight = Annotated[float, Field(allow_inf_nan=False)]


class RewardsSettings(Settings):
    """Further rewards of every episode, each a table of its own: `[[rewards.judge]]`, `[[rewards.rule]]` and so on."""

    weights: dict[str, Weight] = Field(default_factory=dict)  # of the environment's own rewards, in place of theirs
    rule: tuple[RuleSettings, ...] = ()  # Python functions of the episode
    anchor: tuple[AnchorSettings, ...] = ()  # nearness to replies written by people
    model: tuple[RewardModelSettings, ...] = ()  # Hugging Face sequence classifiers
    judge: tuple[JudgeSettings, ...] = ()  # chat models behind an OpenAI-compatible endpoint

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = Counter(each.name for each in (*self.rule, *self.anchor, *self.model, *self.judge))
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"two rewards are called {twice[0]!r}")
        return self


def open_rewards(settings: RewardsSettings, *, score_s: float) -> RewardMix:
    """Build every component; close the mix when the run ends.

    Args:
        score_s: seconds that grading has. A judge must come to its own end before, so that it is named when it is late.

    Raises:
        ConfigError: a component cannot work; names it.
    """
    for judge in settings.judge:
        if judge.budget_s >= score_s:
            raise ConfigError(
                f"[rewards.judge] {judge.name}: budget_s = {judge.budget_s:g}: "
                f"must be below rollout.score_s = {score_s:g}"
            )
    components: list[Component] = [
        *map(Rule, settings.rule),
        *map(Anchor, settings.anchor),
        *map(RewardModel, settings.model),
        *map(Judge, settings.judge),
    ]
    return RewardMix(tuple(components), settings.weights)

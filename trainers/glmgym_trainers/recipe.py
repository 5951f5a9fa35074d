"""A recipe: what to train, on what, with which algorithm. Read from TOML into strict settings.

Each component's settings live beside the component; this file only puts them in one place and owns the trainer's own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, model_validator

from glmgym.compaction import CompactionSettings
from glmgym.engine import SamplingSettings
from glmgym.errors import ConfigError, UnknownName
from glmgym.fleet import FleetSettings
from glmgym.mixture import Source, find_sources
from glmgym.rollout import Budget
from glmgym.settings import Settings, parse_settings
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.rewards import RewardsSettings
from glmgym_trainers.settings import TrainerSettings, TuningSettings
from glmgym_trainers.teachers import TeachersSettings

# A wheel carries the recipes inside the package; a checkout has them beside it.
RECIPES = next(p for p in (Path(__file__).parent / "recipes", Path(__file__).parents[1] / "recipes") if p.is_dir())


class PolicySettings(TuningSettings):
    """Where the policy starts, and what the embedded engine holds of it."""

    init: str = "quickstart"  # checkpoint directory, a warm start in the package, or "stage:NAME" of an earlier stage
    context_length: int = Field(default=512, ge=2)  # tokens; prompt and everything sampled and observed
    max_slots: int = Field(default=48, ge=1)  # sequences the embedded engine decodes at once


class EnvSettings(Settings):
    id: str | None = None  # as in `glmgym envs`, or the path of an environment file or directory
    mix: dict[str, float] = Field(default_factory=dict)  # in place of an id: shares of several environments, by id

    @model_validator(mode="after")
    def _one_of_the_two(self) -> EnvSettings:
        if (self.id is None) == (not self.mix):
            raise ValueError("give either id or mix")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """How much of each environment, by its id or path."""
        return self.mix if self.id is None else {self.id: 1.0}

    def sources(self) -> tuple[Source, ...]:
        """The environments, found.

        Raises:
            ConfigError: see ``find_sources``.
        """
        return find_sources(self.shares)


class SandboxSettings(Settings):
    backend: str = "bubblewrap"  # by its entry point
    warm: int = Field(default=4, ge=0)  # started boxes waiting to be used


class EvalSettings(Settings):
    episodes: int = Field(default=256, ge=0)  # held-out tasks, one attempt each; 0 for no evaluation


class Recipe(Settings):
    seed: int = Field(default=0, ge=0)
    env: EnvSettings
    policy: PolicySettings = Field(default_factory=PolicySettings)
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    rollout: Budget = Field(default_factory=Budget)
    rewards: RewardsSettings = Field(default_factory=RewardsSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    compaction: CompactionSettings | None = None  # without the table a full context ends the episode
    fleet: FleetSettings = Field(default_factory=FleetSettings)
    algorithm: SerializeAsAny[Settings]
    teachers: TeachersSettings = Field(default_factory=TeachersSettings)
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    eval: EvalSettings = Field(default_factory=EvalSettings)

    @property
    def algorithm_name(self) -> str:
        return next(name for name, kind in ALGORITHMS.items() if isinstance(self.algorithm, kind.Settings))


def load_recipe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe file, or one that ships with glmgym by its name, and apply dotted overrides.

    Raises:
        ConfigError: no such recipe, not TOML, an unknown key (with the nearest known one), or a value that cannot work.
    """
    where, data = read_recipe(source)
    if "stage" in data:
        raise ConfigError(f"{where} is a recipe of stages, not of a single run")
    for key, value in (overrides or {}).items():
        override(data, key, value)
    return parse_recipe(data, where=where)


def read_recipe(source: str | Path) -> tuple[str, dict[str, Any]]:
    """How to call a recipe in a message, and its plain data as written; see ``load_recipe``."""
    path = _find(source)
    try:
        return str(path), tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_recipe(data: Mapping[str, Any], *, where: str) -> Recipe:
    """Strict settings from plain data; see ``load_recipe``."""
    table = data.get("algorithm", {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: algorithm = {table!r}: must be a table, as in algorithm.name = {table!r}")
    table = dict(table)
    name = str(table.pop("name", "sao"))
    if name not in ALGORITHMS:
        raise UnknownName("algorithm", name, ALGORITHMS)
    algorithm = parse_settings(ALGORITHMS[name].Settings, table, where=f"{where} [algorithm]")
    recipe = parse_settings(Recipe, {**data, "algorithm": algorithm}, where=where)
    built = ALGORITHMS[name](algorithm)
    if recipe.trainer.batch_size % built.group_size:
        raise ConfigError(
            f"{where} [trainer] batch_size = {recipe.trainer.batch_size}: not a multiple of group_size = "
            f"{built.group_size}"
        )
    if recipe.fleet.dynamic_sampling and built.group_size == 1:
        raise ConfigError(
            f"{where} [fleet] dynamic_sampling: algorithm {name!r} has no groups whose outcomes could differ"
        )
    if built.uses_teacher and not recipe.teachers.routes:
        raise ConfigError(
            f"{where}: algorithm {name!r} learns from teachers; give [teachers] routes, such as "
            '{terminal = "runs/expert/checkpoints/step-000030/policy"}: task domain = checkpoint'
        )
    if recipe.teachers.routes and not built.uses_teacher:
        raise ConfigError(
            f"{where} [teachers] routes: algorithm {name!r} learns from no teacher; leave them out, or take another one"
        )
    return recipe


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """Plain data that ``parse_recipe`` reads back as the same recipe; keys without a value are left out."""
    data = recipe.model_dump(mode="json", exclude_none=True)
    return {**data, "algorithm": {"name": recipe.algorithm_name, **data["algorithm"]}}


def _find(source: str | Path) -> Path:
    path = Path(source)
    for candidate in (path, RECIPES / f"{source}.toml"):
        if candidate.is_file():
            return candidate
    shipped = [file.stem for file in RECIPES.glob("*.toml")]
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ConfigError(
            f"there is no recipe file {path}; recipes that ship with glmgym: {', '.join(sorted(shipped))}"
        )
    raise UnknownName("recipe", str(source), shipped)


def override(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of plain recipe data, in place.

    Raises:
        ConfigError: a part of the key is a value already, not a table.
    """
    table = data
    *parents, leaf = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: {parent!r} is a value, not a table")
    table[leaf] = value

"""A recipe: what to train, on what, with which algorithm. Read from TOML into strict settings.

Each component's settings live beside the component; this file only puts them in one place and owns the trainer's own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny

from glmgym.engine import SamplingSettings
from glmgym.errors import ConfigError, UnknownName
from glmgym.fleet import FleetSettings
from glmgym.rollout import Budget
from glmgym.settings import Settings, parse_settings
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.settings import TrainerSettings

# A wheel carries the recipes inside the package; a checkout has them beside it.
RECIPES = next(p for p in (Path(__file__).parent / "recipes", Path(__file__).parents[1] / "recipes") if p.is_dir())


class PolicySettings(Settings):
    init: str = "quickstart"  # checkpoint directory, or the name of a warm start in the package
    context_length: int = Field(default=512, ge=2)  # tokens; prompt and everything sampled and observed
    max_slots: int = Field(default=48, ge=1)  # sequences the embedded engine decodes at once


class EnvSettings(Settings):
    id: str  # as in `glmgym envs`, or the path of an environment file or directory


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
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    fleet: FleetSettings = Field(default_factory=FleetSettings)
    algorithm: SerializeAsAny[Settings]
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
    path = _find(source)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _override(data, key, value)
    return parse_recipe(data, where=str(path))


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
    group_size = ALGORITHMS[name](algorithm).group_size
    if recipe.trainer.batch_size % group_size:
        raise ConfigError(
            f"{where} [trainer] batch_size = {recipe.trainer.batch_size}: not a multiple of group_size = {group_size}"
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


def _override(data: dict[str, Any], key: str, value: Any) -> None:
    table = data
    *parents, leaf = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: {parent!r} is a value, not a table")
    table[leaf] = value

"""A recipe of several stages: each a run of its own, starting from the final policy of an earlier one.

Owned here: how stages inherit from the recipe's top-level tables, how they refer to each other (``"stage:NAME"``), and
the order in which they run and resume. A stage's run directory is ``OUT/01-NAME``; its ``config.toml`` is an ordinary
recipe in which every reference is the path of a checkpoint, so ``inspect``, ``verify`` and ``eval`` need nothing new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.errors import ConfigError, UnknownName
from glmgym.events import OnEvent, StageFinished, StageStarted
from glmgym_trainers import checkpoint
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.imitation import check_demonstrator
from glmgym_trainers.policy import replace_text, resolve
from glmgym_trainers.recipe import Recipe, dump_recipe, override, parse_recipe, read_recipe
from glmgym_trainers.run import train
from glmgym_trainers.runlog import read_rows

REFERENCE = "stage:"
SUMMARY_FILE = "stages.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of a staged recipe; in ``recipe``, other stages' policies are still called ``"stage:NAME"``."""

    number: int  # from 1
    name: str
    recipe: Recipe

    @property
    def directory_name(self) -> str:
        return f"{self.number:02d}-{self.name}"

    def resolved(self, policies: Mapping[str, Path]) -> Recipe:
        """The recipe with the checkpoints of ``policies``, by stage name, in place of references."""

        def fill(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: fill(inner) for key, inner in value.items()}
            is_reference = isinstance(value, str) and value.startswith(REFERENCE)
            return str(policies[value.removeprefix(REFERENCE)]) if is_reference else value

        return parse_recipe(fill(dump_recipe(self.recipe)), where=f"stage {self.name!r}")


@dataclass(frozen=True, slots=True)
class StagedRecipe:
    """Stages in the order they run; each refers to earlier ones only."""

    stages: tuple[Stage, ...]


def load(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe | StagedRecipe:
    """Read a recipe file of either kind, or one that ships with glmgym by its name, and apply dotted overrides.

    In a recipe of stages, ``stage.NAME.key`` overrides a key of one stage and any other key that of all of them.

    Raises:
        ConfigError: as ``load_recipe``, naming the stage; every stage is read before any of them runs.
    """
    where, data = read_recipe(source)
    if "stage" in data:
        return parse_stages(data, overrides or {}, where=where)
    for key, value in (overrides or {}).items():
        override(data, key, value)
    return parse_recipe(data, where=where)


def parse_stages(data: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str) -> StagedRecipe:
    """Strict settings of every stage from plain data.

    A stage inherits the top-level tables key by key. Three things are its own: an ``[env]`` replaces the whole table,
    an ``[algorithm]`` of another name starts from that algorithm's defaults, and ``policy.init`` is the previous
    stage's policy unless the stage says otherwise; the top level's is where the first stage starts.

    Raises:
        ConfigError: a stage is mistaken, nameless or named twice, or refers to one that is not before it.
    """
    tables = data["stage"]
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables) or not tables:
        raise ConfigError(f"{where}: stages are written as [[stage]] tables, each with a name")
    base = {key: value for key, value in data.items() if key != "stage"}
    names: list[str] = []
    stages = []
    for number, table in enumerate(tables, start=1):
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            taken = "; another stage has it" if name in names else ""
            raise ConfigError(
                f"{where}: [[stage]] {number} has name = {name!r}{taken}; give each a name of its own, "
                "of small letters, digits, - and _"
            )
        own = {key: value for key, value in table.items() if key != "name"}
        recipe = _merged(base, own)
        if number > 1 and "init" not in own.get("policy", {}):
            override(recipe, "policy.init", f"{REFERENCE}{names[-1]}")
        for key, value in _overrides_of(name, overrides).items():
            override(recipe, key, value)
        stages.append(Stage(number, name, parse_recipe(recipe, where=f"{where} [stage {name}]")))
        _check_references(stages[-1], names, where=where)
        names.append(name)
    for key in overrides:
        if key.startswith("stage.") and key.split(".")[1] not in names:
            raise UnknownName(f"stage of {where}", key.split(".")[1], names)
    return StagedRecipe(tuple(stages))


async def run(
    recipe: Recipe | StagedRecipe, directory: Path, *, resume: bool, on_event: OnEvent = lambda event: None
) -> None:
    """Run a recipe of either kind to its end in ``directory``.

    Of a staged one, ``resume`` skips the finished stages, goes on with the one that is not and starts the others. After
    each stage ``stages.json`` says what it began and ended with.

    Raises:
        ConfigError: an environment or checkpoint that a stage names is not there, or the directory holds other stages.
        GlmgymError: as ``train``; the finished stages stay.
    """
    if isinstance(recipe, Recipe):
        await train(recipe, directory, resume=resume, on_event=on_event)
        return
    for stage in recipe.stages:
        _check_names(stage)
    _check_directory(recipe, directory, resume=resume)
    summaries: list[dict[str, Any]] = []
    policies: dict[str, Path] = {}
    for stage in recipe.stages:
        home = directory / stage.directory_name
        own = stage.resolved(policies)
        on_event(StageStarted(stage.name, stage.number, len(recipe.stages)))
        if checkpoint.finished(home, own) is None:
            await train(own, home, resume=(home / checkpoint.CONFIG_FILE).is_file(), on_event=on_event)
        policies[stage.name] = _final_policy(home)
        summaries.append(_summary(stage, own, home))
        replace_text(directory / SUMMARY_FILE, json.dumps(summaries, indent=2) + "\n")
        results = summaries[-1]["before"], summaries[-1]["after"]
        on_event(StageFinished(stage.name, stage.number, len(recipe.stages), home, *results))


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``base``, table by table, in new tables; see ``parse_stages`` for the algorithm's."""
    out = dict(base)
    for key, value in own.items():
        below = out.get(key)
        if key == "env" or (key == "algorithm" and _renames(below, value)):
            below = None  # another environment, or algorithm, than the base's shares no key with it
        out[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return {key: _merged(value, {}) if isinstance(value, Mapping) else value for key, value in out.items()}


def _renames(base: Any, own: Any) -> bool:
    both = isinstance(base, Mapping) and isinstance(own, Mapping)
    return both and "name" in own and own["name"] != base.get("name")


def _overrides_of(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for one stage, by the keys of its own recipe; what is said for it alone comes last and wins."""
    everyone = {key: value for key, value in overrides.items() if not key.startswith("stage.")}
    if "policy.init" in everyone:
        raise ConfigError("--set policy.init: every stage has its own; write --set stage.NAME.policy.init=...")
    prefix = f"stage.{name}."
    return everyone | {key.removeprefix(prefix): v for key, v in overrides.items() if key.startswith(prefix)}


def _references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every ``"stage:NAME"`` in plain recipe data: the dotted key it stands at, and the name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _references(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, str) and value.startswith(REFERENCE):
        yield path, value.removeprefix(REFERENCE)


def _check_references(stage: Stage, earlier: list[str], *, where: str) -> None:
    for key, name in _references(dump_recipe(stage.recipe)):
        if name not in earlier:
            known = f"before it: {', '.join(earlier)}" if earlier else "it is the first"
            raise ConfigError(f"{where} [stage {stage.name}] {key} = '{REFERENCE}{name}': no earlier stage; {known}")


def _check_names(stage: Stage) -> None:
    """What a later stage would only find out hours from now: an environment or a starting point that is not there."""
    recipe = stage.recipe
    try:
        for source in recipe.env.sources():
            if ALGORITHMS[recipe.algorithm_name].demonstrates:
                check_demonstrator(source.spec)
        for path in (recipe.policy.init, *recipe.teachers.routes.values()):
            if not path.startswith(REFERENCE):
                resolve(path)
    except ConfigError as error:
        raise ConfigError(f"stage {stage.name!r}: {error}") from error


def _check_directory(recipe: StagedRecipe, directory: Path, *, resume: bool) -> None:
    """Refuse a directory that cannot serve this recipe, without touching it: every run in it must be one of its stages.

    Raises:
        ConfigError: it holds runs and ``resume`` is off, holds none and ``resume`` is on, or a stage was started with
            another recipe, or from a stage that is not finished.
    """
    started = sorted(path.parent.name for path in directory.glob(f"*/{checkpoint.CONFIG_FILE}"))
    if not resume:
        if started or (directory / checkpoint.CONFIG_FILE).exists():
            raise ConfigError(f"{directory} already holds a run; add --resume to go on with it, or give another --out")
        return
    if not started:
        raise ConfigError(f"{directory} holds no stage to resume; leave --resume out to start")
    if foreign := set(started) - {stage.directory_name for stage in recipe.stages}:
        raise ConfigError(f"{directory} was started with another recipe: this one has no stage for {sorted(foreign)}")
    policies: dict[str, Path] = {}
    unfinished = ""
    for stage in recipe.stages:
        home = directory / stage.directory_name
        if stage.directory_name not in started:
            unfinished = unfinished or stage.name
            continue
        if unfinished:
            raise ConfigError(
                f"{home} was started after stage {unfinished!r}, which this recipe has not finished; take back what "
                f"makes {unfinished!r} go further, or give another --out"
            )
        own = stage.resolved(policies)
        checkpoint.check_directory(home, own, resume=True)
        if checkpoint.finished(home, own) is None:
            unfinished = stage.name
        else:
            policies[stage.name] = _final_policy(home)


def _final_policy(home: Path) -> Path:
    newest = checkpoint.latest(home)
    assert newest is not None
    return newest.policy_dir


def _summary(stage: Stage, recipe: Recipe, home: Path) -> dict[str, Any]:
    evaluations = [row for row in read_rows(home / "metrics.jsonl") if row.get("event") == "evaluation"]
    found = {row["label"]: row["overall"] for row in evaluations}  # of several afterwards, the last
    return {
        "name": stage.name,
        "directory": stage.directory_name,
        "environment": " + ".join(recipe.env.shares),
        "algorithm": recipe.algorithm_name,
        "start": recipe.policy.init,
        "policy": str(_final_policy(home)),
        "before": found.get("before"),
        "after": found.get("after"),
    }

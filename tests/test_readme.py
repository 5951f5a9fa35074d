"""What the README and the page of environments say works: their environments are checked, the files they name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from glmgym.check import check
from glmgym.cli.app import app
from glmgym.evaluation import wilson
from glmgym.registry import load_file
from glmgym_envs.terminal.families import FAMILIES
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_trainers.recipe import load_recipe
from glmgym_trainers.stages import StagedRecipe, load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text()


async def test_the_environment_of_the_readme_is_sound_and_short(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    (tmp_path / "env.py").write_text(code)
    report = await check(load_file(tmp_path), None)
    assert report.ok, report.problems


@pytest.mark.bubblewrap
async def test_the_environment_with_a_box_is_sound(tmp_path: Path, bubblewrap_works: None) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", ENVIRONMENTS, re.DOTALL)
    (tmp_path / "env.py").write_text(code)
    provider = open_provider({"warm": 0})
    try:
        report = await check(load_file(tmp_path), provider, tasks=2)
    finally:
        await provider.close()
    assert report.ok, report.problems
    assert report.episodes == 24  # 2 tasks of each split; the oracle and two that do nothing, each twice


def test_the_page_lists_every_family() -> None:
    assert re.findall(r"^\| `(\w+)` \|", ENVIRONMENTS, re.MULTILINE) == [family.name for family in FAMILIES]


def test_the_files_it_names_exist() -> None:
    names = set(re.findall(r"`((?:tests|benchmarks|trainers|docs)/[\w./]+\.\w+)`|\]\((docs/[\w./]+)\)", README))
    assert len(names) > 6
    for pair in names:
        name = pair[0] or pair[1]
        assert (ROOT / name).exists(), name


def _commands(group: Any = None, prefix: str = "glmgym") -> dict[str, Any]:
    """Every command of the command line by its words, those of groups included."""
    found: dict[str, Any] = {}
    parent: Any = group or get_command(app)
    for name, command in parent.commands.items():
        words = f"{prefix} {name}"
        found |= _commands(command, words) if hasattr(command, "commands") else {words: command}
    return found


def test_the_table_of_commands_is_the_command_line() -> None:
    """Each command once, with options it has and the arguments it asks for."""
    (table,) = re.findall(r"## Commands\n\n(.+?)\n\n", README, re.DOTALL)
    commands = _commands()
    seen = []
    for line in re.findall(r"`(glmgym .+?)`", table):
        (words,) = [words for words in commands if f"{line} ".startswith(f"{words} ")]
        seen.append(words)
        parameters = commands[words].params
        options = {name for parameter in parameters for name in parameter.opts if name.startswith("--")}
        required = [parameter for parameter in parameters if parameter.required]
        assert set(re.findall(r"--[\w-]+", line)) <= options, line
        assert {parameter.opts[0] for parameter in required if parameter.opts[0].startswith("--")} <= set(line.split())
        places = sum(not parameter.opts[0].startswith("--") for parameter in required)
        assert len(re.findall(r" [A-Z]+\b", re.sub(r"\[.*?\]|--[\w-]+ \S+", "", line))) == places, line
    assert sorted(seen) == sorted(commands)


def test_every_command_to_type_parses() -> None:
    """The lines of the README's shell blocks, as the real parser reads them."""
    blocks = re.findall(r"^```(\w*)\n(.+?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    typed = [shlex.split(line, comments=True) for line in lines if line.startswith("glmgym ")]
    assert len(typed) >= 7
    commands = _commands()
    for words in typed:
        (name,) = [name for name in commands if words[: len(name.split())] == name.split()]
        commands[name].make_context(name, words[len(name.split()) :])


def test_the_figures_agree_with_each_other_and_with_the_recipe() -> None:
    """A success is a whole number of the tasks, its interval is Wilson's, and the counts are the recipe's."""
    rows = re.findall(r"^\| (\d) \| (0\.\d{3}) \| (0\.\d{3}) \((0\.\d{3}) to (0\.\d{3})\)", README, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    recipe = load_recipe("quickstart")
    episodes = recipe.eval.episodes
    assert f"Success on {episodes} held-out tasks" in README
    for row in rows:
        _check_figures(row[1:], episodes)
    updates = recipe.trainer.steps + recipe.algorithm.model_dump()["value_warmup"]
    assert f"{updates * recipe.trainer.batch_size:,} episodes" in README
    assert f"checkpoints/step-{updates:06d}/policy" in README


def test_the_figures_of_the_other_recipes_are_possible_and_disjoint() -> None:
    """Each row names a recipe that loads; its intervals before and after, both Wilson's, do not overlap."""
    number = r"(0\.\d{3})"
    rows = re.findall(rf"^\| `(\w+)` \|.*\| {number} \| {number} \({number} to {number}\) \|", README, re.MULTILINE)
    assert [name for name, *_ in rows] == ["grpo_icepop", "dis", "sao", "compaction", "opd", "mopd"]
    for name, *figures in rows:
        recipe = load(name)
        last = recipe.stages[-1].recipe if isinstance(recipe, StagedRecipe) else recipe
        episodes = last.eval.episodes
        _check_figures(figures, episodes)
        before, _, low, _ = map(float, figures)
        assert wilson(before, episodes)[1] < low


def _check_figures(figures: Sequence[str], episodes: int) -> None:
    before, after, low, high = figures
    for share in (before, after):
        assert f"{round(float(share) * episodes) / episodes:.3f}" == share
    interval = wilson(round(float(after) * episodes) / episodes, episodes)
    assert [f"{bound:.3f}" for bound in interval] == [low, high]

"""What the README and the page of environments say works: their environments are checked, the files they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glmgym.check import check
from glmgym.registry import load_file
from glmgym_envs.terminal.families import FAMILIES
from glmgym_sandboxes.bubblewrap import open_provider

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

"""What the README says works: its environment is checked, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from glmgym.check import check
from glmgym.registry import load_file

README = (Path(__file__).parents[1] / "README.md").read_text()


async def test_the_environment_of_the_readme_is_sound_and_short(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    (tmp_path / "env.py").write_text(code)
    report = await check(load_file(tmp_path), None)
    assert report.ok, report.problems


def test_the_files_it_names_exist() -> None:
    root = Path(__file__).parents[1]
    names = set(re.findall(r"`((?:tests|benchmarks|trainers|docs)/[\w./]+\.\w+)`|\]\((docs/[\w./]+)\)", README))
    assert len(names) > 6
    for pair in names:
        name = pair[0] or pair[1]
        assert (root / name).exists(), name

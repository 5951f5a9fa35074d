"""The import contract: the core is light, and nobody reaches over the fence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"glmgym": ".", "glmgym_envs": "envs", "glmgym_sandboxes": "sandboxes", "glmgym_trainers": "trainers"}


def test_the_core_imports_without_torch() -> None:
    heavy = "{'torch', 'transformers', 'docker', 'aiodocker', 'glmgym_trainers'}"
    code = f"import glmgym, glmgym.fleet, glmgym.evaluation, glmgym.cli, sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages and of the contract."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, parent in PACKAGES.items():
        only_code = shutil.ignore_patterns("__pycache__", "assets")
        shutil.copytree(ROOT / parent / name, tmp_path / name, ignore=only_code)
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """``lint-imports`` in a process of its own, with the copy before the installed packages."""
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    return subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=tree, capture_output=True, text=True)


def test_the_contract_holds(tree: Path) -> None:
    result = lint(tree)
    assert result.returncode == 0, result.stdout
    assert "2 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "planted", "broken"),
    [
        ("glmgym/metrics.py", "import torch", "glmgym.metrics -> torch"),
        ("glmgym/rollout.py", "def f():\n    import torch.nn", "glmgym.rollout -> torch"),
        ("glmgym/registry.py", "import glmgym.rollout", "glmgym.registry -> glmgym.rollout"),
        (
            "glmgym_envs/terminal/env.py",
            "import glmgym_sandboxes.fake",
            "glmgym_envs.terminal.env -> glmgym_sandboxes.fake",
        ),
    ],
)
def test_a_planted_violation_is_found(tree: Path, module: str, planted: str, broken: str) -> None:
    with (tree / module).open("a") as file:
        file.write(f"\n{planted}\n")
    result = lint(tree)
    assert result.returncode == 1
    assert broken in result.stdout

"""What is installed is what was tested: the wheel works alone, no core module escapes the import contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("glmgym", "glmgym_envs", "glmgym_sandboxes", "glmgym_trainers")

# Runs with the unpacked wheel first on the path: each file that is no module is read through the code that needs it.
USE = """
from pathlib import Path
import glmgym.scaffold, glmgym_envs.terminal, glmgym_sandboxes.agent, glmgym_trainers
from glmgym.chat import load_tokenizer
from glmgym.registry import environment
from glmgym_trainers.policy import resolve
from glmgym_trainers.recipe import RECIPES, load_recipe

here = Path.cwd()
for module in (glmgym, glmgym_envs, glmgym_sandboxes, glmgym_trainers, glmgym_sandboxes.agent):
    assert Path(module.__file__).is_relative_to(here), module.__file__
recipe = load_recipe("quickstart")
policy = resolve(recipe.policy.init)
assert policy.is_relative_to(here) and RECIPES.is_relative_to(here), (policy, RECIPES)
print(environment(recipe.env.id).id, load_tokenizer(policy).vocab_size, (policy / "model.safetensors").stat().st_size)
print(*[path.name for path in glmgym.scaffold.init_env("my_env")])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip builds it. Its build backend comes from the package index, so an offline machine skips."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-q", "-w", str(out)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in built.stderr and os.environ.get("CI") != "true":
        pytest.skip("the build backend (hatchling) cannot be fetched: no package index within reach")
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("glmgym-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Recipes, warm start, tokenizer, templates and the in-box agent are read from the unpacked wheel alone."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    used = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert used.returncode == 0, used.stderr
    named, written = used.stdout.splitlines()
    env_id, vocabulary, size = named.split()
    assert env_id == "terminal-basics-v0"
    assert int(vocabulary) > 256  # every byte and GLM's special tokens
    assert int(size) <= 4 * 1024 * 1024
    assert written == "env.py test_env.py README.md"


@pytest.mark.slow
def test_the_wheel_holds_the_packages_typed_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    strays = [name for name in names if not name.startswith((*(f"{package}/" for package in PACKAGES), "glmgym-"))]
    assert strays == []  # bare ``tests`` or ``trainers`` would land in everybody's site-packages
    assert not [name for name in names if "__pycache__" in name]


def test_every_core_module_has_a_layer() -> None:
    """The layers contract says nothing about a module it does not list, so a new one must be given its place."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    listed = [name for layer in layers for name in re.split(r" *[|:] *", layer)]
    modules = [path.stem for path in (ROOT / "glmgym").glob("*.py") if path.stem != "__init__"]
    modules += [path.parent.name for path in (ROOT / "glmgym").glob("*/__init__.py")]
    assert sorted(listed) == sorted([*(f"glmgym.{name}" for name in modules), *PACKAGES[1:]])


def make(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``make`` on the repository's Makefile, but in ``cwd``: nothing here touches the checkout's own environment."""
    command = ["make", "-f", str(ROOT / "Makefile"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_make_alone_explains_every_target(tmp_path: Path) -> None:
    (targets,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = make(cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"^make (\w+) ", shown.stdout, re.MULTILINE) == [
        name for name in targets.split() if name != "help"
    ]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ('[ "$1" != -c ]', "glmgym needs Python 3.11 or newer"),  # as 3.10 answers the question for its version
        (
            '[ "$1" = -c ] || { mkdir -p .venv/bin; touch .venv/bin/python; echo "no ensurepip"; false; }',
            "no ensurepip",
        ),
    ],
    ids=["too old", "no venv package"],
)
def test_a_python_that_cannot_serve_is_named_each_time(tmp_path: Path, python: str, said: str) -> None:
    """What a failed attempt leaves behind must not pass for a virtual environment the second time."""
    (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "python").chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for _ in range(2):
        result = make("train", f"PYTHON={tmp_path / 'python'}", cwd=tmp_path)
        assert result.returncode != 0
        assert said in result.stdout
        assert not (tmp_path / ".venv").exists()

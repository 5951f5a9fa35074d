"""Names to environments: versions, suggestions, and a user's own file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmgym import Reward, ScoreView, Task, ToolEnv, procedural, register
from glmgym.errors import ConfigError, UnknownName
from glmgym.registry import environment, environments, find_environment, load_component, load_file

TASKS = procedural(lambda rng: Task(instruction=str(rng.random())), train=1, heldout=1, name="none")


class Nothing(ToolEnv):
    """Does nothing.

    And more.
    """

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("nothing", 0.0),)


def test_a_name_without_a_version_is_its_highest() -> None:
    """Version 10 is above version 9: numbers, not text."""
    for version in (9, 10, 2):
        register(f"alpha-v{version}", Nothing, tasks=TASKS)
    assert environment("alpha").id == "alpha-v10"
    assert environment("alpha-v9").id == "alpha-v9"
    assert environment("alpha-v9").description == "Does nothing."


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"environment 'terminal-basic-v0'; did you mean 'terminal-basics-v0'\?"):
        environment("terminal-basic-v0")


@pytest.mark.parametrize("id", ["alpha", "alpha-0", "-v1", "9alpha-v0", "alpha-v1x"])
def test_an_id_needs_a_name_and_a_version(id: str) -> None:
    with pytest.raises(ConfigError, match="needs a name and a version"):
        register(id, Nothing, tasks=TASKS)


def test_an_id_is_registered_once() -> None:
    register("beta-v0", Nothing, tasks=TASKS)
    with pytest.raises(ConfigError, match="registered twice"):
        register("beta-v0", Nothing, tasks=TASKS)
    with pytest.raises(ConfigError, match="max_turns=0"):
        register("gamma-v0", Nothing, tasks=TASKS, max_turns=0)


def test_installed_packages_are_found_by_entry_point() -> None:
    spec = environments()["terminal-basics-v0"]
    assert (spec.max_turns, spec.tasks.size("heldout")) == (8, 512)
    assert spec.tasks.size("train") >= 20_000
    with pytest.raises(UnknownName, match=r"unknown entry of glmgym.sandboxes 'bublewrap'; did you mean 'bubblewrap'"):
        load_component("sandboxes", "bublewrap")


def test_importing_the_package_is_light() -> None:
    code = "import glmgym, sys; assert not {'torch', 'transformers', 'glmgym_envs'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


ENV_FILE = """
from glmgym import Reward, Task, ToolEnv, procedural, register
from {sibling} import NAME

class Mine(ToolEnv):
    async def score(self, view):
        return (Reward("r", 1.0),)

register(NAME, Mine, tasks=procedural(lambda rng: Task(instruction=str(rng.random())), train=1, heldout=1, name=NAME))
"""


def test_a_users_file_is_loaded_by_path_once(tmp_path: Path) -> None:
    """The directory, the file and the id mean the same; a module beside the file can be imported."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "names_for_mine.py").write_text("NAME = 'mine-v3'\n")
    (folder / "env.py").write_text(ENV_FILE.format(sibling="names_for_mine"))
    spec = load_file(folder)
    assert spec.id == "mine-v3"
    assert load_file(folder / "env.py") is spec
    assert find_environment(f"{folder}/") == find_environment(str(folder)) == find_environment("mine") == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n\ny = z\n", r"env.py: NameError: name 'z' is not defined \(line 3\)"),
        ("def f(:\n", r"env.py: SyntaxError"),
        ("import no_such_thing\n", r"ModuleNotFoundError: No module named 'no_such_thing' \(line 1\)"),
        ("x = 1\n", r"registers no environment; it must call glmgym.register"),
        (
            "from glmgym import tool\n@tool\ndef f(): pass\n",
            r"load .*: tool 'f' must be an async function.* \(line 2\)",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_says_where(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "env.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_file(tmp_path)


def test_a_file_that_fails_half_way_leaves_nothing_registered(tmp_path: Path) -> None:
    """After the mistake is mended, loading the same file again must not say 'registered twice'."""
    (tmp_path / "names_half.py").write_text("NAME = 'half-v0'\n")
    good = ENV_FILE.format(sibling="names_half")
    (tmp_path / "env.py").write_text(good + "1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_file(tmp_path)
    (tmp_path / "env.py").write_text(good)
    assert load_file(tmp_path).id == "half-v0"


def test_a_file_registers_one_environment(tmp_path: Path) -> None:
    (tmp_path / "names_two.py").write_text("NAME = 'two-v0'\n")
    again = "register('two-v1', Mine, tasks=procedural(Task, train=1, heldout=1, name='two'))\n"
    (tmp_path / "env.py").write_text(ENV_FILE.format(sibling="names_two") + again)
    with pytest.raises(ConfigError, match=r"registers 2 environments \(two-v0, two-v1\)"):
        load_file(tmp_path)


def test_a_file_may_be_the_first_to_import_a_package_of_environments(tmp_path: Path) -> None:
    """In a fresh process: what the package registers is not the file's, and outlives a file that fails."""
    good = "from glmgym import Task, procedural, register\nfrom glmgym.registry import environment\n"
    good += "from glmgym_envs.terminal import Terminal\nenvironment('terminal-basics')\n"
    good += "register('first-v0', Terminal, tasks=procedural(lambda rng: Task(), train=1, heldout=1, name='first'))\n"
    (tmp_path / "good.py").write_text(good)
    (tmp_path / "bad.py").write_text(good.replace("first", "bad") + "1 / 0\n")
    for file, says in (("good.py", "first-v0"), ("bad.py", "ZeroDivisionError")):
        code = f"""
from glmgym.errors import ConfigError
from glmgym.registry import environment, load_file
try:
    print(load_file({file!r}).id)
except ConfigError as error:
    print(error)
print(environment("terminal-basics").id)
"""
        result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        said = result.stdout.splitlines()
        assert says in said[0]
        assert said[1:] == ["terminal-basics-v0"], result.stderr


def test_a_package_that_cannot_be_imported_hides_nobody(tmp_path: Path) -> None:
    """Whatever it fails with: it is named, and the others are there."""
    (tmp_path / "broken_plugin.py").write_text("def f(:\n")
    info = tmp_path / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[glmgym.environments]\nbroken = broken_plugin\n")
    code = "from glmgym.registry import environment; print(environment('terminal-basics').id)"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=paths)
    assert result.stdout == "terminal-basics-v0\n", result.stderr
    assert "environments of broken are missing: import broken_plugin: SyntaxError" in result.stderr


def test_a_missing_path_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no environment at .*nothing: there is no file"):
        load_file(tmp_path / "nothing")

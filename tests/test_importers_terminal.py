"""Terminal-bench 1 tasks: what is kept, and what is refused by its key."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from imported_tasks import DATA

from glmgym.errors import ConfigError
from glmgym_envs.harbor import load_task
from glmgym_envs.importers import IMPORTERS

GOLDEN = DATA / "terminal-bench"
IMPORT = IMPORTERS["terminal-bench"]
SERVICE = "services:\n  client:\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "count-words", tmp_path / "count-words"))


def config_of(directory: Path) -> dict[str, Any]:
    return tomllib.loads((directory / "task.toml").read_text())


def test_the_dockerfile_and_what_lies_beside_it_are_the_environment(tmp_path: Path) -> None:
    words, shell = IMPORT(GOLDEN, tmp_path)
    beside = {path.relative_to(words).as_posix() for path in (words / "environment").rglob("*") if path.is_file()}
    assert beside == {f"environment/{name}" for name in ("Dockerfile", "notes/a.txt", "notes/b.txt")}
    config = config_of(words)
    assert config["environment"] == {"env": {"LC_ALL": "C.UTF-8"}, "workdir": "/app"}
    assert config["agent"]["timeout_sec"] == 120.0
    assert config["verifier"]["timeout_sec"] == 60.0
    assert config["metadata"]["difficulty"] == "easy"
    assert config["metadata"]["glmgym"] == {"parser": "pytest", "offline_shim": True, "log": {"witness": True}}
    assert config_of(shell)["metadata"]["glmgym"]["tests_in_agent_shell"] is True
    rule = {"rule": "all-passed", "parser": "pytest"}
    assert json.loads((words / "tests" / "rule.json").read_text()) == rule
    assert json.loads((shell / "tests" / "rule.json").read_text()) == {**rule, "strict": True}  # nothing beside the log
    assert load_task(shell).in_place
    assert not load_task(words).in_place


def test_with_an_image_the_files_go_to_the_working_directory(tmp_path: Path) -> None:
    [words] = IMPORT(GOLDEN / "count-words", tmp_path, image="base")
    assert (words / "environment" / "files" / "notes" / "a.txt").read_text() == "one two three\n"
    assert not (words / "environment" / "Dockerfile").exists()
    assert config_of(words)["environment"]["docker_image"] == "base"
    assert config_of(words)["metadata"]["glmgym"]["files"] == "files"
    assert load_task(words).dockerfile is None


def test_keystrokes_that_are_commands_make_a_script(tmp_path: Path) -> None:
    [words] = IMPORT(GOLDEN / "count-words", tmp_path)
    lines = (words / "solution" / "solve.sh").read_text().splitlines()
    assert lines[2:] == ["cd /app/notes", 'for f in *.txt; do echo "$f: $(wc -w < $f)"; done > /app/counts.txt']


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("- command: C-c\n", r"\[0\]: command = 'C-c': is a keystroke"),
        ("- command: ls\n- command: Enter\n", r"\[1\]: command = 'Enter': is a keystroke"),
        ("- command: vim a.txt\n", "command = 'vim a.txt': what follows are keystrokes"),
        ("- command: /usr/bin/less a\n", "what follows are keystrokes"),
        ("- command: 'echo \"a'\n", "it goes on in the next entry"),
        ("- command: y\n  append_enter: false\n", "append_enter = false"),
        ("- comand: ls\n", "unknown key 'comand'; did you mean 'command'"),
        ("- ls\n", "must be a mapping, not 'ls'"),
        ("command: ls\n", "must be a list of commands"),
        ("- [\n", "not YAML"),
    ],
)
def test_keystrokes_that_are_no_commands_are_refused(entry: str, says: str, task: Path, tmp_path: Path) -> None:
    (task / "solution.yaml").write_text(entry)
    with pytest.raises(ConfigError, match=says):
        IMPORT(task, tmp_path / "out")


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        (f"{SERVICE}    image: a\n  redis:\n    image: redis\n", "services: client, redis; only one service"),
        (f"{SERVICE}    privileged: true\n", "services.client.privileged: no box gives that"),
        (f"{SERVICE}    deploy:\n      resources: {{}}\n", "services.client.deploy: no box gives that"),
        (f"{SERVICE}    volumes:\n      - ./data:/data\n", "services.client.volumes: './data:/data' is not"),
        (f"{SERVICE}    build:\n      args: {{}}\n", "services.client.build.args"),
        (f"{SERVICE}    build: ./docker\n", "services.client.build = './docker'"),
        (f"{SERVICE}    build:\n      context: .\n      dockerfile: Dockerfile.gpu\n", "build.dockerfile"),
        (f"{SERVICE}    image: a\nnetworks: {{}}\n", "networks: a box has nothing like it"),
        ("services: {}\n", "services: none"),
    ],
)
def test_what_a_compose_file_asks_for_and_no_box_gives(compose: str, says: str, task: Path, tmp_path: Path) -> None:
    (task / "docker-compose.yaml").write_text(compose)
    with pytest.raises(ConfigError, match=says):
        IMPORT(task, tmp_path / "out")


def test_a_service_may_set_variables_and_a_directory(task: Path, tmp_path: Path) -> None:
    (task / "docker-compose.yaml").write_text(
        f"{SERVICE}    build: .\n    working_dir: /srv\n    environment:\n      A: 1\n      T: ${{T_BENCH_TEST_DIR}}\n"
    )
    [words] = IMPORT(task, tmp_path / "out")
    assert config_of(words)["environment"] == {"env": {"A": "1"}, "workdir": "/srv"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("parser_name: pytest", "parser_name: swelancer", "parser_name = 'swelancer': no such parser"),
        ("difficulty: easy", "dificulty: easy", "unknown key 'dificulty'; did you mean 'difficulty'"),
        ("difficulty: easy", "", "missing key 'difficulty'"),
        ("max_test_timeout_sec: 60.0", "max_test_timeout_sec: 0", "max_test_timeout_sec = 0"),
    ],
)
def test_a_task_file_that_cannot_work(old: str, new: str, says: str, task: Path, tmp_path: Path) -> None:
    text = (task / "task.yaml").read_text()
    assert old in text
    (task / "task.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=says):
        IMPORT(task, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("run-tests.sh", "run-tests.sh is missing: without it nothing can be graded"),
        ("Dockerfile", "Dockerfile is missing; give an image"),
        ("solution.yaml", "has neither solution.sh nor solution.yaml"),
    ],
)
def test_a_task_that_lacks_a_file(name: str, says: str, task: Path, tmp_path: Path) -> None:
    (task / name).unlink()
    with pytest.raises(ConfigError, match=says):
        IMPORT(task, tmp_path / "out")


def test_a_place_without_tasks_and_a_file_that_is_not_utf8(task: Path, tmp_path: Path) -> None:
    (task / "run-tests.sh").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"run-tests.sh is not UTF-8"):
        IMPORT(task, tmp_path / "out")
    with pytest.raises(ConfigError, match="holds no terminal-bench task"):
        IMPORT(task / "notes", tmp_path / "out")
    with pytest.raises(ConfigError, match="leave --repositories out"):
        IMPORT(task, tmp_path / "out", repositories=tmp_path)

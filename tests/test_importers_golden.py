"""Golden imports: a real-shaped example of each format, played through the native environment in real boxes.

The oracle of every imported task scores 1 and doing nothing 0, in both verifier modes where the format leaves it open.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import tomli_w
from imported_tasks import DATA, make_repository

from glmgym import assistant
from glmgym.check import play
from glmgym.messages import Message, ToolCall
from glmgym.sandbox import SandboxProvider
from glmgym_envs.harbor import spec_of
from glmgym_envs.importers import IMPORTERS
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_sandboxes.docker import open_provider as open_docker
from glmgym_sandboxes.images import ImageStore

ROWS = {
    "swe-bench": "swe-bench.jsonl",
    "swe-gym": "swe-gym.json",
    "swe-smith": "swe-smith.jsonl",
    "r2e-gym": "r2e-gym.jsonl",
}


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


def imported(format: str, place: Path) -> list[Path]:
    if format == "terminal-bench":
        return IMPORTERS[format](DATA / "terminal-bench", place / "out", image="base")
    names = {"r2e-gym": "tally"}
    make_repository(place / "repositories" / names.get(format, "acme__tally"))
    return IMPORTERS[format](DATA / ROWS[format], place / "out", image="base", repositories=place / "repositories")


def make_separate(directory: Path) -> None:
    file = directory / "task.toml"
    config = tomllib.loads(file.read_text())
    config["artifacts"] = ["/testbed"]
    config["verifier"]["environment_mode"] = "separate"
    file.write_text(tomli_w.dumps(config))


async def total(directory: Path, replies: list[Message] | None, provider: SandboxProvider) -> float:
    """What the replies score, or the oracle's."""
    spec = spec_of(directory)
    task = spec.tasks.task("heldout", 0)
    assert spec.oracle is not None
    episode = await play(spec, task, list(spec.oracle(task)) if replies is None else replies, provider)
    return episode.total


@pytest.mark.bubblewrap
@pytest.mark.parametrize("mode", ["shared", "separate"])
@pytest.mark.parametrize("format", sorted(ROWS))
async def test_a_row_is_solved_by_its_patch_and_by_nothing_else(
    format: str, mode: str, provider: SandboxProvider, tmp_path: Path
) -> None:
    for directory in imported(format, tmp_path):
        if mode == "separate":
            make_separate(directory)
        assert await total(directory, None, provider) == 1.0
        assert await total(directory, [assistant("I am done.")], provider) == 0.0


@pytest.mark.bubblewrap
async def test_the_hidden_tests_win_over_the_policys_at_their_paths(provider: SandboxProvider, tmp_path: Path) -> None:
    """H3: files planted where hidden tests will be neither stand in for them nor keep them out."""
    directory = imported("swe-bench", tmp_path)[0]
    ids = "['two  spaces', 'a space before']"
    passing = f"import pytest\n\n\n@pytest.mark.parametrize('n', {ids})\ndef test_any_space(n):\n    pass\n"
    plant = [
        assistant(
            "", ToolCall("1", "write_file", {"path": "/testbed/tests/test_empty.py", "content": "def test_empty(): 1"})
        ),
        assistant("", ToolCall("2", "write_file", {"path": "/testbed/tests/test_tally.py", "content": passing})),
    ]
    assert await total(directory, [*plant, assistant("I am done.")], provider) == 0.0
    spec = spec_of(directory)
    assert spec.oracle is not None
    honest = spec.oracle(spec.tasks.task("heldout", 0))
    assert await total(directory, [*plant, *honest], provider) == 1.0


@pytest.mark.bubblewrap
async def test_terminal_bench_tasks_are_solved_in_their_box_and_in_the_policys_shell(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    for directory in imported("terminal-bench", tmp_path):
        assert await total(directory, None, provider) == 1.0
        assert await total(directory, [assistant("I am done.")], provider) == 0.0


# An image as rows name them: the repository is at /testbed. Each worker's own: the other one removes what it built.
TESTBED = f"glmgym-tests-import-testbed-{os.getpid()}"


@pytest.fixture
def base(docker_base: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine's tag of the image base. What a test builds comes into a store of its own, and is removed."""
    tag = ImageStore().find("base").tag
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tag
    built = [name for image in ImageStore().list() for name in (image.name, image.tag)]
    subprocess.run(["docker", "image", "rm", "--force", TESTBED, *built], capture_output=True, check=False)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("format", ["swe-bench", "swe-smith", "terminal-bench"])
async def test_a_task_whose_image_is_built(format: str, base: str, tmp_path: Path) -> None:
    if format == "terminal-bench":
        directory = imported_with_dockerfile(base, tmp_path)
    else:
        build_testbed(base, tmp_path / "context")
        row = json.loads((DATA / ROWS[format]).read_text().splitlines()[0])
        (tmp_path / "row.json").write_text(json.dumps({**row, "image_name": TESTBED}))
        [directory] = IMPORTERS[format](tmp_path / "row.json", tmp_path / "out")
    provider = open_docker({"warm": 0})
    try:
        assert await total(directory, None, provider) == 1.0
        assert await total(directory, [assistant("I am done.")], provider) == 0.0
    finally:
        await provider.close()


def build_testbed(base: str, context: Path) -> None:
    make_repository(context / "repository")
    (context / "Dockerfile").write_text(f"FROM {base}\nCOPY repository /testbed\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", TESTBED, context], check=True)


def imported_with_dockerfile(base: str, place: Path) -> Path:
    [directory] = IMPORTERS["terminal-bench"](DATA / "terminal-bench" / "count-words", place / "out")
    dockerfile = directory / "environment" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("FROM glmgym/base", f"FROM {base}"))
    return directory

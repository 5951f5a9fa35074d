"""Task directories for tests: the golden ones in ``data/harbor``, and small ones written on the spot."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from glmgym import Message, ToolCall, assistant
from glmgym.check import Episode, play
from glmgym.sandbox import SandboxProvider
from glmgym_envs.harbor import spec_of

GOLDEN = Path(__file__).parent / "data/harbor"
TOML = """
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = 20.0
{verifier}
[environment]
docker_image = "base"
workdir = "/app"
memory_mb = 256
storage_mb = {storage_mb}
{environment}
"""
NOTHING = [assistant("I cannot do this.")]


def write_task(
    place: Path,
    test: str = "echo 1 > /logs/verifier/reward.txt",
    *,
    head: str = "",
    verifier: str = "",
    environment: str = "",
    storage_mb: int = 64,
) -> Path:
    """A task directory whose ``test.sh`` is ``test``; ``head`` stands before the tables of ``task.toml``."""
    (place / "tests").mkdir(parents=True)
    (place / "tests/test.sh").write_text(f"#!/bin/bash\n{test}\n")
    (place / "instruction.md").write_text("Do it.\n")
    toml = TOML.format(verifier=verifier, environment=environment, storage_mb=storage_mb)
    (place / "task.toml").write_text(f"{head}\n{toml}")
    return place


def copy_task(name: str, place: Path, **replaced: str) -> Path:
    """A golden task with words of its text files replaced."""
    shutil.copytree(GOLDEN / name, place)
    for file in place.rglob("*"):
        if file.is_file() and file.suffix in (".toml", ".md", ".sh"):
            text = file.read_text()
            for old, new in replaced.items():
                text = text.replace(old, new)
            file.write_text(text)
    return place


def shell(*commands: str) -> list[Message]:
    """One turn of shell calls and a final message."""
    calls = [ToolCall(f"c{n}", "shell", {"command": command}) for n, command in enumerate(commands)]
    return [assistant("", *calls), assistant("Done.")]


async def play_task(provider: SandboxProvider, directory: Path, replies: Sequence[Message]) -> Episode:
    spec = spec_of(directory)
    return await play(spec, spec.tasks.task("heldout", 0), replies, provider)

"""Small parts for tests of evaluations: an environment file whose episodes take a moment, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from glmgym.cli.app import app
from glmgym.errors import GlmgymError

ENVIRONMENT = '''
"""Answers are worth what their digits say; every call takes a moment."""
import asyncio
import random

from glmgym import Reward, ScoreView, Task, ToolCall, ToolEnv, assistant, procedural, register, tool


class Slow(ToolEnv):
    """Waits."""

    system = "Answer with a number."

    @tool
    async def wait(self, moments: int) -> str:
        """Wait."""
        await asyncio.sleep(SECONDS)
        return f"waited {moments}"

    tools = (wait,)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("digits", {"0": 0.5, "1": 1.0, "42": 1.0}.get(view.answer, 0.0)),)


def make(rng: random.Random) -> Task:
    number = rng.randrange(10**6)
    return Task(instruction=f"Task {number}", data={"number": number}, family=("odd", "even")[number % 2 == 0])


def oracle(task: Task):
    return [assistant("", ToolCall("c", "wait", {"moments": 1})), assistant("1")]


register("slow-v0", Slow, tasks=procedural(make, train=10, heldout=200, name="slow-v0"), oracle=oracle, max_turns=4)
'''


def write_environment(directory: Path, *, seconds: float = 0.0, name: str = "slow") -> Path:
    """``env.py`` of the environment above; within one process each needs a name of its own."""
    path = directory / "env.py"
    path.write_text(ENVIRONMENT.replace("SECONDS", str(seconds)).replace("slow-v0", f"{name}-v0"))
    return path


@dataclass(frozen=True, slots=True)
class Done:
    """A command that was run in this process; ``error`` is the sentence of the one that ended it."""

    output: str
    error: str


def invoke(*arguments: object) -> Done:
    """One command in this process, which is quicker than in its own."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    error = result.exception
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None and not isinstance(error, GlmgymError):
        raise error
    return Done(result.output, "" if error is None else " ".join(str(error).split()))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from glmgym.cli import main; main()", *map(str, arguments)]


def surroundings(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **more}


def glmgym(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=300, check=False, env=surroundings(**more)
    )

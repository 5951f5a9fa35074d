"""``Reasoning``: questions with one right answer, and Python in a box to work it out.

Most answers are compared with what the task expects. Where the answer is code, it runs on hidden inputs in a fresh box
and the comparison stays outside: the expected outputs never enter a place where the policy's code runs.
"""

from __future__ import annotations

from pydantic import Field

from glmgym.env import ScoreView, Task
from glmgym.errors import EnvFailure
from glmgym.sandbox import CommandError, CommandResult, Sandbox
from glmgym.settings import Settings, parse_settings
from glmgym.tool import tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward

PYTHON = ("python3", "-I", "-S")  # neither the box's files nor its site-packages can change what runs
_TRY = "import sys\ncode = sys.stdin.read()\nfor x in map(int, sys.argv[1:]): print(eval(code, {'x': x}))"


class ReasoningData(Settings):
    """``Task.data`` of a reasoning task."""

    answer: str  # the expected final message; where the answer is code, one expression that passes
    cases: dict[int, int] = Field(default_factory=dict)  # output by input x; if there are any, the answer is code in x
    slots: dict[str, str] = Field(default_factory=dict)  # what the instruction was filled with; for scripted policies


class Reasoning(ToolEnv):
    """Short arithmetic and code questions of twelve families."""

    system = "Use Python if you need it, then answer."
    max_observation_chars = 240
    script_timeout_s = 5.0

    @tool
    async def python(self, code: str, box: Sandbox) -> str:
        """Run Python."""
        return describe(await run_python(box, "-", stdin=code, timeout_s=self.script_timeout_s))

    tools = (python,)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the final message is the expected answer, or code in ``x`` that gives every expected output."""
        data = read_data(view.task)
        if not data.cases:
            return (Reward("correct", float(view.answer == data.answer)),)
        if not view.answer:
            return (Reward("correct", 0.0, reason="no answer"),)
        fresh = await view.open_box()
        try:
            inputs = map(str, data.cases)
            result = await run_python(fresh, "-c", _TRY, *inputs, stdin=view.answer, timeout_s=self.script_timeout_s)
        finally:
            await fresh.close()
        expected = [str(y) for y in data.cases.values()]
        # The policy's program is what may fail here, so a crash or a timeout is a wrong answer, not a broken scorer.
        right = result.stdout.decode("utf-8", "replace").split() == expected
        return (Reward("correct", float(right), reason="" if right else describe(result)[:200]),)


async def run_python(box: Sandbox, *arguments: str, stdin: str, timeout_s: float) -> CommandResult:
    """Run Python in the box. What the policy wrote goes in as ``stdin``: an argument has a size limit and no NUL byte.

    Raises:
        EnvFailure: the box has no ``python3``; what the policy wrote cannot be the reason.
        SandboxDead: the box is gone.
    """
    try:
        return await box.run([*PYTHON, *arguments], timeout_s=timeout_s, stdin=stdin.encode("utf-8", "replace"))
    except CommandError as error:
        raise EnvFailure(f"reasoning tasks need python3 in the box: {error}") from error


def read_data(task: Task) -> ReasoningData:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(ReasoningData, task.data, where=f"task {task.id}")


def describe(result: CommandResult) -> str:
    """A script's result as the policy reads it: what it printed, then the last line of its error.

    The rest of a traceback differs between Python versions and says nothing about a script of one line.
    """
    lines = [text] if (text := result.stdout.decode("utf-8", "replace").rstrip("\n")) else []
    if result.timed_out:
        lines.append("(timed out)")
    elif result.exit_code != 0:
        errors = result.stderr.decode("utf-8", "replace").rstrip("\n").rsplit("\n", 1)
        lines.append(errors[-1] or f"exit {result.exit_code}")
    return "\n".join(lines) or "(no output)"

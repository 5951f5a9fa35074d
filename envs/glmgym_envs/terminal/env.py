"""``Terminal``: a real shell in a real sandbox, graded by a hidden script in a fresh box.

The policy's box is never trusted to grade itself: only the files a task lists, the final answer and what the trusted
side saw of the background jobs are carried into a box it never touched.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace

from pydantic import Field

from glmgym.env import Opening, ScoreView, Task
from glmgym.errors import ConfigError, EnvFailure, ScorerFailure
from glmgym.sandbox import BoxFileError, CommandResult, Sandbox, Shell
from glmgym.settings import Settings, parse_settings
from glmgym.tool import tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward

WORK = "/work"
CHECK = "/tmp/check/check.sh"  # outside /work, where the collected files go
MAX_COLLECTED_BYTES = 1024 * 1024  # of one file; a larger one counts as missing
CHECK_TIMEOUT_S = 30.0
JOB_SAMPLES_APART_S = 0.2  # a signal takes a moment to arrive, so a job is alive only if it is seen twice
MAX_JOB_SAMPLES = 25  # and longer to be acted on, on a busy machine
_PF_EXITING = 4  # a flag of the kernel's


class TerminalData(Settings):
    """``Task.data`` of a terminal task. Paths are relative to ``/work``."""

    files: dict[str, str] = Field(default_factory=dict)  # text by path, written before the policy starts
    jobs: dict[str, str] = Field(
        default_factory=dict
    )  # background shell commands by name; the process id is in NAME.pid
    collect: list[str] = Field(
        default_factory=list
    )  # files carried into the grading box; a missing one is simply not there
    check: str  # bash script run in the grading box's /work; exit 0: solved, 1: not solved
    answer: str = ""  # the expected final message; for oracles
    slots: dict[str, str] = Field(default_factory=dict)  # what the instruction was filled with; for scripted policies


class Terminal(ToolEnv):
    """A shell that keeps its directory and variables between commands."""

    system = "Use the shell, then answer."
    max_observation_chars = 2_000
    command_timeout_s = 10.0

    _shell: Shell
    _births: dict[str, str | None]

    @tool
    async def shell(self, cmd: str) -> str:
        """Run a command."""
        return describe(await self._shell.run(cmd, timeout_s=self.command_timeout_s))

    tools = (shell,)

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Write the task's files and start its jobs.

        Raises:
            ConfigError: there is no box, or the task's data does not fit ``TerminalData``.
            EnvFailure: a job did not start.
        """
        if box is None:
            raise ConfigError(f"{type(self).__name__} needs a box: register it with box=BoxSpec()")
        opening = await super().reset(task, box)
        data = read_data(task)
        for path, text in data.files.items():
            await box.write(f"{WORK}/{path}", text.encode())
        self._shell = await box.shell()
        for name, command in data.jobs.items():
            await self._start(name, command)
        self._births = {name: await _birth(box, await _pid(box, name)) for name in data.jobs}
        if None in self._births.values():
            raise EnvFailure(f"task {task.id}: a background job ended before the policy saw it")
        return replace(opening, volatile=tuple(f"{WORK}/{name}.pid" for name in data.jobs))

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the hidden script exits with 0 in a fresh box, 0 if it exits with 1.

        The script finds the collected files, ``answer.txt`` and ``jobs.txt`` (lines ``NAME alive`` or ``NAME dead``).

        Raises:
            ScorerFailure: the script did anything else, so that nothing can be said about the policy.
        """
        assert view.box is not None
        data = read_data(view.task)
        files: dict[str, bytes] = {}
        for path in data.collect:
            try:
                files[f"{WORK}/{path}"] = await view.box.read(f"{WORK}/{path}", max_bytes=MAX_COLLECTED_BYTES)
            except BoxFileError:
                continue  # the policy did not produce it; the script decides what that means
        if data.jobs:
            states = await self._job_states(view.box)
            files[f"{WORK}/jobs.txt"] = "".join(f"{name} {state}\n" for name, state in states.items()).encode()
        # Last, so that no collected file of the same name stands in for what the trusted side knows.
        files |= {f"{WORK}/answer.txt": view.answer.encode(), CHECK: data.check.encode()}
        fresh = await view.open_box()
        try:
            for path, content in files.items():
                await fresh.write(path, content)
            result = await fresh.run(["bash", CHECK], cwd=WORK, timeout_s=CHECK_TIMEOUT_S)
        finally:
            await fresh.close()
        if result.timed_out or result.exit_code not in (0, 1):
            raise ScorerFailure(f"task {view.task.id}: the check neither passed nor failed: {describe(result)}")
        return (Reward("check", float(result.exit_code == 0)),)

    async def _start(self, name: str, command: str) -> None:
        # From a subshell, so that the policy's shell does not report the end of a job it never started.
        job = f"bash -c {shlex.quote(command)} </dev/null >/dev/null 2>&1"
        result = await self._shell.run(f"({job} & echo $! > {WORK}/{name}.pid)")
        if result.exit_code != 0:
            raise EnvFailure(f"job {name} did not start: {describe(result)}")

    async def _job_states(self, box: Sandbox) -> dict[str, str]:
        pids = {name: birth.split()[0] for name, birth in self._births.items() if birth}
        running = {name: await _birth(box, pid) == self._births[name] for name, pid in pids.items()}
        if any(running.values()):
            for _ in range(MAX_JOB_SAMPLES):
                await asyncio.sleep(JOB_SAMPLES_APART_S)
                if not any([await _is_struck(box, pid) for pid in pids.values()]):
                    break
            running = {name: await _birth(box, pid) == self._births[name] for name, pid in pids.items()}
        return {name: "alive" if alive else "dead" for name, alive in sorted(running.items())}


def read_data(task: Task) -> TerminalData:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(TerminalData, task.data, where=f"task {task.id}")


def describe(result: CommandResult) -> str:
    """A command's result as the policy reads it: the output, then what was cut, a timeout or a non-zero exit."""
    lines = [text] if (text := result.text.rstrip("\n")) else []
    if result.dropped_bytes:
        lines.append(f"({result.dropped_bytes} bytes dropped)")
    if result.timed_out:
        lines.append("(timed out)")
    elif result.exit_code != 0:
        lines.append(f"exit {result.exit_code}")
    return "\n".join(lines) or "(no output)"


async def _pid(box: Sandbox, name: str) -> str:
    return (await box.read(f"{WORK}/{name}.pid")).decode().strip()


async def _birth(box: Sandbox, pid: str) -> str | None:
    """``"PID START"`` of a running process, which no other process ever shares; ``None`` if it is gone or going."""
    try:
        stat = (await box.read(f"/proc/{pid}/stat")).decode()
    except BoxFileError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces; see proc(5)
    is_ending = fields[0] == "Z" or int(fields[6]) & _PF_EXITING
    return None if is_ending else f"{pid} {fields[19]}"


async def _is_struck(box: Sandbox, pid: str) -> bool:
    """Whether a signal waits to be acted on."""
    try:
        status = (await box.read(f"/proc/{pid}/status")).decode()
    except BoxFileError:
        return False
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(int(mask, 16) for mask in pending)

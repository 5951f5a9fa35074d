"""``HarborEnv``: one task directory as an episode: a shell and file tools in a box; a final message ends a step.

The opening and each further step's instruction are user messages. A step is graded as it ends, so that one below its
``min_reward`` ends the episode; the last one, and those graded in boxes of their own, are graded afterwards.
"""

from __future__ import annotations

import asyncio
import posixpath
import weakref
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmgym import scratch
from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError, EnvFailure, ScorerFailure
from glmgym.messages import Message, user
from glmgym.sandbox import Sandbox, Shell, view
from glmgym.tool import ToolError, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward
from glmgym_envs.grading.rewards import REWARD
from glmgym_envs.harbor.artifacts import Collected, gather
from glmgym_envs.harbor.box import Boxes
from glmgym_envs.harbor.health import wait_until_healthy
from glmgym_envs.harbor.intruders import look
from glmgym_envs.harbor.task import HarborTask, Stage
from glmgym_envs.harbor.verify import (
    Verdict,
    grade_in_place,
    grade_separate,
    grade_shared,
    keep,
    weighed,
)
from glmgym_envs.terminal.env import describe

LOG_PLACES = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
SETUP = "/tmp/.setup"
SETUP_TIMEOUT_S = 120.0
MOST_SHELL_S = 3600.0
MAX_FILE_BYTES = 4 * 1024 * 1024  # that a tool reads or edits


@dataclass(frozen=True, slots=True)
class _Ended:
    """A step the policy is done with. ``verdict`` is ``None`` if it crashed, for ``problem``, or is not graded yet."""

    stage: Stage
    verdict: Verdict | None = None
    problem: str = ""
    artifacts: tuple[Collected, ...] = ()


class HarborEnv(ToolEnv):
    """Tools: ``shell``, ``read_file``, ``write_file`` and ``edit_file``. ``boxes`` are the tasks by id."""

    system = "You work in a Linux box through tools. When the task is done, answer with a message that calls none."

    def __init__(self, boxes: Mapping[str, Boxes]) -> None:
        self._known = boxes

    @tool
    async def shell(self, command: str, timeout_s: float = 60.0) -> str:
        """Run a command line in a shell that keeps its directory and variables.

        Args:
            command: one or more lines of bash.
            timeout_s: seconds after which it is killed.
        """
        if not 0 < timeout_s <= MOST_SHELL_S:
            raise ToolError(f"timeout_s must be above 0 and at most {MOST_SHELL_S:g}")
        return describe(await self._shell.run(command, timeout_s=timeout_s))

    @tool
    async def read_file(self, path: str, box: Sandbox, start: int = 1, end: int | None = None) -> str:
        """Read a text file.

        Args:
            path: absolute, or below the working directory.
            start: first line, from 1.
            end: last line; the file's end if left out.
        """
        if start < 1 or (end is not None and end < start):
            raise ToolError("start must be at least 1, and end not before it")
        lines = view(await box.read(self._at(path), max_bytes=MAX_FILE_BYTES)).splitlines(keepends=True)
        return "".join(lines[start - 1 : end]) or "(empty)"

    @tool
    async def write_file(self, path: str, content: str, box: Sandbox) -> str:
        """Write a file, with its directories; what was there is replaced.

        Args:
            path: absolute, or below the working directory.
            content: the whole text.
        """
        data = content.encode("utf-8", "surrogateescape")
        await box.write(self._at(path), data, mode=await _mode(box, self._at(path)))
        return f"{len(data)} bytes written"

    @tool
    async def edit_file(self, path: str, old: str, new: str, box: Sandbox) -> str:
        """Replace a piece of a file that occurs exactly once.

        Args:
            path: absolute, or below the working directory.
            old: the piece, with its line ends and indentation.
            new: what comes in its place.
        """
        place = self._at(path)
        data, piece = await box.read(place, max_bytes=MAX_FILE_BYTES), old.encode()
        count = data.count(piece) if piece else 0
        if count != 1:
            raise ToolError(f"{path} holds that piece {count} times; give one that occurs once")
        await box.write(place, data.replace(piece, new.encode()), mode=await _mode(box, place))
        return "edited"

    tools = (shell, read_file, write_file, edit_file)

    def opening(self, task: Task) -> str:
        return self._stage.instruction

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Make the box as the task wants it and wait until it is healthy.

        Raises:
            EnvFailure: the set-up script failed, or the box does not become healthy.
        """
        if box is None:
            raise ConfigError(f"{type(self).__name__} needs a box: register it with box=...; see spec_of")
        self._boxes = self._known[task.id]
        self._number = 0
        self._ended: list[_Ended] = []
        self._kept: Path | None = None
        self.box = box
        harbor, own = self._boxes.task, self._boxes.task.own
        made = await box.run(["/bin/mkdir", "-p", "--", *LOG_PLACES, self._boxes.workdir])
        if made.exit_code != 0:
            raise EnvFailure(
                f"task {task.id}: {made.text.strip()}; [agent] user may not make it: bake it into the image"
            )
        if own.files is not None:
            await box.put_tree(harbor.environment / own.files, self._boxes.workdir)
        if own.setup is not None:
            await self._run_script(
                (harbor.environment / own.setup).read_bytes(), f"[metadata.glmgym] setup {own.setup}"
            )
        await self._begin_stage()
        if harbor.config.environment.healthcheck is not None:
            await wait_until_healthy(box, harbor.config.environment.healthcheck, self._boxes.workdir)
        self._before = await look(box, self._boxes.workdir, own.log)
        opening = await super().reset(task, box)
        return replace(opening, volatile=tuple(posixpath.join(self._boxes.workdir, path) for path in own.volatile))

    async def step(self, reply: Message) -> Step:
        """Run the calls; a reply without any ends the step, and the next one's instruction is the answer."""
        if reply.tool_calls or self._number + 1 == len(self._boxes.task.stages):
            return await super().step(reply)
        ended = await self._end_stage()
        info = {"step": ended.stage.name, "crashed": ended.problem}
        if ended.verdict is not None and not _reaches(ended.verdict.rewards, ended.stage.min_reward):
            return Step(terminated=True, info=info)
        self._number += 1
        await self._begin_stage()
        return Step((user(self._stage.instruction),), info=info)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """The rewards that the tests wrote; of several steps as ``multi_step_reward_strategy`` says.

        Raises:
            ScorerFailure: no reward, one that cannot be read, or tests that took too long.
        """
        assert view.box is not None
        if len(self._ended) <= self._number:
            await self._end_stage(view)
        for place, ended in enumerate(self._ended):
            if ended.verdict is None and not ended.problem:
                grading = grade_separate(self._boxes, ended.stage, ended.artifacts, view.open_box, self._before)
                verdict = await self._attempt(ended.stage, grading)
                self._ended[place] = verdict
        if self._kept is not None:
            await asyncio.to_thread(scratch.remove, self._kept)
        return _combine(self._boxes.task.stages, self._ended, self._boxes.task.config.multi_step_reward_strategy)

    @property
    def known_tasks(self) -> dict[str, HarborTask]:
        """By id, whatever may be played."""
        return {id: boxes.task for id, boxes in self._known.items()}

    @property
    def verdicts(self) -> tuple[tuple[str, Verdict], ...]:
        """By step, of those graded so far."""
        return tuple((each.stage.name, each.verdict) for each in self._ended if each.verdict is not None)

    @property
    def _stage(self) -> Stage:
        return self._boxes.task.stages[self._number]

    def _at(self, path: str) -> str:
        return posixpath.join(self._boxes.workdir, path)

    async def _begin_stage(self) -> None:
        box, stage, workdir = self.box, self._stage, self._boxes.workdir
        assert box is not None
        if self._boxes.spec.network:
            await box.set_network(self._boxes.agent_network(stage))
        if stage.workdir is not None:
            await box.put_tree(stage.workdir, workdir)
            script = stage.workdir / "setup.sh"
            if script.is_file():
                await box.run(["/bin/rm", "-f", "--", posixpath.join(workdir, "setup.sh")])
                await self._run_script(script.read_bytes(), f"steps/{stage.name}/workdir/setup.sh")
        if stage.healthcheck is not None:
            await wait_until_healthy(box, stage.healthcheck, workdir)
        if self._number == 0:
            self._shell: Shell = await box.shell()
            if workdir != self._boxes.spec.cwd:
                await self._shell.run(f"cd '{workdir}'")

    async def _end_stage(self, view: ScoreView | None = None) -> _Ended:
        """Grade the running step, or keep what its grading will need; ``view`` once the episode is over."""
        box, stage = self.box, self._stage
        assert box is not None
        if stage.separate:
            await keep(stage, box)
            if self._kept is None:
                self._kept = await asyncio.to_thread(scratch.new_place)
                weakref.finalize(self, scratch.remove, self._kept)  # of an episode that fails before it is scored
            ended = _Ended(stage, artifacts=await gather(box, stage.artifacts, self._kept / str(self._number)))
        else:
            ended = await self._attempt(stage, self._grade_now(stage, box, view))
        self._ended.append(ended)
        return ended

    async def _grade_now(self, stage: Stage, box: Sandbox, view: ScoreView | None) -> Verdict:
        await keep(stage, box)
        if self._boxes.task.in_place:
            return await grade_in_place(self._boxes, stage, box, self._before.python, self._shell)
        return await grade_shared(self._boxes, stage, box, self._before, view)

    async def _attempt(self, stage: Stage, grading: Coroutine[Any, Any, Verdict]) -> _Ended:
        """A step whose grading breaks is left out of the mean; a task without steps fails with it."""
        try:
            return _Ended(stage, await grading)
        except ScorerFailure as failure:
            if not stage.name:
                raise
            return _Ended(stage, problem=str(failure))

    async def _run_script(self, script: bytes, what: str) -> None:
        assert self.box is not None
        await self.box.write(SETUP, script, mode=0o755)
        result = await self.box.run(["/bin/bash", SETUP], cwd=self._boxes.workdir, timeout_s=SETUP_TIMEOUT_S)
        await self.box.run(["/bin/rm", "-f", SETUP])
        if result.exit_code != 0:
            raise EnvFailure(
                f"task {self._boxes.task.id}: {what} ended with {result.exit_code}: {result.text.strip()[-500:]}"
            )


async def _mode(box: Sandbox, path: str) -> int:
    """The mode that a file keeps when it is written again."""
    result = await box.run(["/usr/bin/stat", "-c", "%a", "--", path])
    text = result.text.strip()
    return int(text, 8) if result.exit_code == 0 and text.isdigit() else 0o644


def _reaches(rewards: tuple[Reward, ...], least: Mapping[str, float]) -> bool:
    values = {reward.name: reward.value for reward in rewards}
    return all(values.get(key, float("-inf")) >= value for key, value in least.items())


def _combine(stages: tuple[Stage, ...], ended: list[_Ended], strategy: str) -> tuple[Reward, ...]:
    """The rewards of a trial from those of its steps.

    ``mean``: per key over all steps; one that lacks the key, or was never reached, counts 0, one that crashed does not
    count. ``final``: the last step's own, 0 if it was never reached. A flag on any step makes all 0.

    Raises:
        ScorerFailure: every step that would count crashed.
    """
    if not stages[0].name:
        assert ended[0].verdict is not None
        return ended[0].verdict.rewards
    by_name = {each.stage.name: each for each in ended}
    counted = [stages[-1]] if strategy == "final" else list(stages)
    notes: list[str] = []
    values: list[dict[str, float]] = []
    for stage in counted:
        found = by_name.get(stage.name)
        if found is None:
            notes.append(f"{stage.name} was not reached")
            values.append({})
        elif found.verdict is None:
            notes.append(f"{stage.name} crashed: {found.problem.splitlines()[0]}")
        else:
            values.append({reward.name: reward.value for reward in found.verdict.rewards})
    if not values:
        raise ScorerFailure("; ".join(notes))
    graded = [reward for each in ended if each.verdict is not None for reward in each.verdict.rewards]
    names = list(dict.fromkeys(reward.name for reward in graded)) or [REWARD]
    notes += [note for note in dict.fromkeys(reward.reason for reward in graded) if note]
    believed = not any(each.verdict.flags for each in ended if each.verdict is not None)
    means = {name: believed * sum(each.get(name, 0.0) for each in values) / len(values) for name in names}
    return weighed([Reward(name, value, reason="; ".join(notes)) for name, value in means.items()])

"""Grading a stage of a task: its tests run where the policy cannot reach them, and what they wrote is the reward.

Three places. *Shared*: a fork of the policy's box, with its files and none of its processes. *Separate*: a fresh box
that gets the collected artifacts and nothing else. *In place*: the policy's own box, for tasks that need what runs in
it; the reward is then written to a place whose name was drawn after the policy was done, the tests are compared with
their trusted copy afterwards, and every reward says where it comes from. Tests come into a box only after the policy
is done with it; their exit code means nothing. An imported task's log is judged here, not in the box (``logged.py``).

A box that was brought down while the tests ran is opened once more; if that one is, too, the policy did it.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from glmgym import scratch
from glmgym.env import OpenBox, ScoreView
from glmgym.errors import SandboxDead, ScorerFailure
from glmgym.sandbox import BoxFileError, CommandResult, Sandbox, Shell
from glmgym.trajectory import Reward
from glmgym_envs.grading import GradingBox, Mode, modes
from glmgym_envs.grading.modes import BroughtDown
from glmgym_envs.grading.rewards import REWARD, read_rewards
from glmgym_envs.grading.signs import signs
from glmgym_envs.grading.trusted import random_name
from glmgym_envs.harbor import offline
from glmgym_envs.harbor.artifacts import Collected, put
from glmgym_envs.harbor.box import Boxes, resolve
from glmgym_envs.harbor.health import wait_until_healthy
from glmgym_envs.harbor.intruders import Before, changed_starters, python_of, take_out
from glmgym_envs.harbor.logged import judge_log
from glmgym_envs.harbor.steering import put_back
from glmgym_envs.harbor.task import TEST, Stage

TESTS = "/tests"
STDOUT = "test-stdout.txt"
REWARD_FILES = ("reward.json", "rewards.json", "reward.txt")
MAX_REWARD_BYTES = 64 * 1024
MAX_STDOUT_BYTES = 8 * 1024 * 1024
LAST_CHARS = 2_000  # of the tests' output, in messages
KILLED = 128 + 9  # the exit code of a shell that SIGKILL ended
# Variables that make programs run something else; functions that bash exported end in the sh between.
_SWAYING = (
    "BASH_ENV",
    "ENV",
    "LD_PRELOAD",
    "LD_AUDIT",
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONSTARTUP",
    "PYTHONHOME",
)
MAX_REWRITTEN_BYTES = 1 << 20  # a test file above is not searched for the place of the reward


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rewards of a stage, and what the tests printed. With a flag, every reward is 0."""

    rewards: tuple[Reward, ...]
    stdout: str = ""
    flags: tuple[str, ...] = ()

    def judged(self, flags: Sequence[str], notes: Sequence[str]) -> Verdict:
        """The same with what was found on the way in each reason; a flag makes every reward 0."""
        found = "; ".join([*(f"flagged: {flag}" for flag in flags), *notes])
        rewards = [
            replace(each, value=0.0 if flags else each.value, reason="; ".join(filter(None, [each.reason, found])))
            for each in self.rewards
        ]
        return replace(self, rewards=tuple(rewards), flags=(*self.flags, *flags))


class _Run(Protocol):
    async def __call__(self, script: str, timeout_s: float) -> CommandResult: ...


async def keep(stage: Stage, box: Sandbox) -> None:
    """Run the commands that keep what would die with the policy's box.

    Raises:
        ScorerFailure: one did not end with 0.
    """
    for each in stage.verifier.collect:
        result = await box.run(["/bin/sh", "-c", each.command], timeout_s=each.timeout_sec)
        if result.exit_code != 0:
            what = f"[[verifier.collect]] {each.command!r}"
            raise ScorerFailure(f"{what} ended with {result.exit_code}: {result.text.strip()}")


async def grade_shared(boxes: Boxes, stage: Stage, box: Sandbox, before: Before, view: ScoreView | None) -> Verdict:
    """In a copy of the policy's box, without what would run in the verifier by itself.

    Args:
        view: ``None`` while the episode goes on: then the system is compared at its end.
    """
    may_change = boxes.task.own.changes_system
    if not may_change and (flags := await changed_starters(box, before)):
        return Verdict((Reward(REWARD, 0.0),)).judged(flags, ())
    return await _once_more(lambda: _grade_copy(boxes, stage, box, before, view))


async def _grade_copy(boxes: Boxes, stage: Stage, box: Sandbox, before: Before, view: ScoreView | None) -> Verdict:
    may_change = boxes.task.own.changes_system
    async with _copy_of(box, boxes.workdir, before.python, view) as grading:
        await modes.empty(grading.box, TESTS)
        found: tuple[str, ...] = ()
        flags: tuple[str, ...] = ()
        if before.python and not may_change:
            found, flags = await take_out(grading.box, boxes.workdir, before)
        if boxes.spec.network:
            await grading.box.set_network(boxes.verifier_network(stage))
        if before.steering is not None:
            found = (*found, *await put_back(grading.box, before.python, before.steering))
        verdict = await _verdict(boxes, stage, grading.box, before.python)
    if may_change:
        return verdict.judged((), (*grading.flags, *grading.notes))
    return verdict.judged((*flags, *grading.flags), (*found, *grading.notes))


async def grade_separate(
    boxes: Boxes, stage: Stage, artifacts: Sequence[Collected], open_box: OpenBox, before: Before
) -> Verdict:
    """In a fresh box that holds the artifacts."""
    return await _once_more(lambda: _grade_apart(boxes, stage, artifacts, open_box, before))


async def _grade_apart(
    boxes: Boxes, stage: Stage, artifacts: Sequence[Collected], open_box: OpenBox, before: Before
) -> Verdict:
    box = await open_box(boxes.grading[stage.name][0])
    try:
        await put(box, artifacts)
        own = stage.verifier.environment
        if own is not None and own.healthcheck is not None:
            await wait_until_healthy(box, own.healthcheck, boxes.grading_workdir(stage))
        for place in (modes.VERIFIER, TESTS):
            await modes.empty(box, place)
        found: tuple[str, ...] = ()
        python = await python_of(box) if boxes.task.own.log is not None else ""
        if before.steering is not None:
            found = await put_back(box, python, before.steering)
        verdict = await _verdict(boxes, stage, box, python)
    finally:
        await box.close()
    return verdict.judged((), [*found, *(note for each in artifacts for note in each.notes)])


async def grade_in_place(boxes: Boxes, stage: Stage, box: Sandbox, python: str, shell: Shell) -> Verdict:
    """In the policy's own box, among its processes; rewards that somebody else wrote, or changed tests, score 0."""
    logs = f"/logs/.{random_name()}"
    notes = await signs(box, home=boxes.workdir, verifier=(modes.VERIFIER,), python=python) if python else ()
    if boxes.spec.network:
        await box.set_network(boxes.verifier_network(stage))
    async with scratch.async_temporary() as directory:
        tests = directory / "tests"
        await asyncio.to_thread(_rewrite, stage.tests, tests, logs)
        run = _shell_runner(boxes, stage, shell) if boxes.task.own.tests_in_agent_shell else _runner(boxes, stage, box)
        failure: ScorerFailure | None = None
        verdict = Verdict((Reward(REWARD, 0.0),))
        try:
            for place in (modes.VERIFIER, TESTS, logs):
                await modes.empty(box, place)
            verdict = await _grade(boxes, stage, box, (tests,), logs, run)
        except ScorerFailure as broken:
            failure = broken
        flags = [f"{name} in {modes.VERIFIER} is not the verifier's" for name in await _named(box, modes.VERIFIER)]
        flags += ["the tests were changed while they ran"] if await _differs(box, tests, directory / "after") else []
    await box.run(["/bin/rm", "-rf", "--", logs, TESTS])
    if failure is not None and not flags:  # else the policy saw to it
        raise failure
    return verdict.judged(flags, ("graded in place, beside the policy's own processes", *notes))


def weighed(rewards: Sequence[Reward]) -> tuple[Reward, ...]:
    """One outcome out of several numbers: what is called ``reward`` alone counts, or else all of them alike."""
    if any(reward.name == REWARD for reward in rewards):
        return tuple(replace(reward, weight=float(reward.name == REWARD)) for reward in rewards)
    return tuple(replace(reward, weight=1 / len(rewards)) for reward in rewards)


async def _once_more(grade: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Grade; again if the box was brought down while the tests ran, which may have had another cause."""
    try:
        return await grade()
    except BroughtDown:
        pass
    try:
        return await grade()
    except BroughtDown as again:
        return Verdict((Reward(REWARD, 0.0),)).judged((f"two grading boxes were brought down: {again}",), ())


async def _verdict(boxes: Boxes, stage: Stage, box: Sandbox, python: str) -> Verdict:
    """What the tests say in a box of their own: by their log where the task has a rule, or by the reward they wrote."""
    if boxes.task.own.log is None:
        return await _grade(boxes, stage, box, stage.tests, modes.VERIFIER, _runner(boxes, stage, box))
    await _put_tests(boxes, stage, box, stage.tests)
    try:
        value, reason, flags, log = await judge_log(boxes, stage, box, python, _environment(boxes, stage))
    except SandboxDead as dead:
        raise BroughtDown(f"{boxes.task.id}: {dead}") from dead
    return Verdict((Reward(REWARD, value, reason=reason),), log).judged(flags, ())


async def _put_tests(boxes: Boxes, stage: Stage, box: Sandbox, tests: Sequence[Path]) -> None:
    for place in tests:
        await box.put_tree(place, TESTS)
    if offline.wanted(boxes.task.own, boxes.verifier_network(stage), stage.tests):
        await offline.put(box)


async def _grade(boxes: Boxes, stage: Stage, box: Sandbox, tests: Sequence[Path], logs: str, run: _Run) -> Verdict:
    await _put_tests(boxes, stage, box, tests)
    try:
        return await _read(boxes, stage, box, logs, run)
    except SandboxDead as dead:
        raise BroughtDown(f"{boxes.task.id}: {dead}") from dead


async def _read(boxes: Boxes, stage: Stage, box: Sandbox, logs: str, run: _Run) -> Verdict:
    timeout_s = stage.verifier.timeout_sec
    script = f"chmod +x {TESTS}/{TEST}; {TESTS}/{TEST} > {logs}/{STDOUT} 2>&1"
    result = await run(script, timeout_s)
    try:
        stdout = (await box.read(f"{logs}/{STDOUT}", max_bytes=MAX_STDOUT_BYTES)).decode("utf-8", "replace")
    except BoxFileError as error:
        stdout = f"({error})"
    tail = f"; the tests' output ends with:\n{stdout[-LAST_CHARS:]}"
    if result.timed_out:
        raise ScorerFailure(f"{boxes.task.id}: [verifier] timeout_sec = {timeout_s:g} is over{tail}")
    try:
        return Verdict(weighed(read_rewards(await _reward_files(box, logs))), stdout)
    except ScorerFailure as failure:
        kind = BroughtDown if result.exit_code == KILLED else ScorerFailure
        raise kind(f"{boxes.task.id}: {failure}{tail}") from failure


def _runner(boxes: Boxes, stage: Stage, box: Sandbox) -> _Run:
    env = _environment(boxes, stage)
    workdir = boxes.grading_workdir(stage)

    async def run(script: str, timeout_s: float) -> CommandResult:
        return await box.run(
            ["/bin/sh", "-c", f"{offline.EXPORT}; {script}"], timeout_s=timeout_s, cwd=workdir, env=env
        )

    return run


def _shell_runner(boxes: Boxes, stage: Stage, shell: Shell) -> _Run:
    """In the policy's shell: its directory, variables and jobs are seen, its functions and aliases not obeyed."""
    env = _environment(boxes, stage)
    unset = " ".join(f"-u {name}" for name in ("POSIXLY_CORRECT", *_SWAYING))
    names = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items())

    async def run(script: str, timeout_s: float) -> CommandResult:
        # In POSIX mode no function of the policy's stands before the builtin exec, nor is a quoted word an alias.
        inner = shlex.quote(f"{offline.EXPORT}; {script}")
        command = f"(POSIXLY_CORRECT=1; \\exec /usr/bin/env {unset} {names} /bin/sh -c {inner})"
        return await shell.run(command, timeout_s=timeout_s)

    return run


def _environment(boxes: Boxes, stage: Stage) -> dict[str, str]:
    return resolve(stage.verifier.env, where=f"{boxes.task.directory / 'task.toml'} [verifier] env")


@asynccontextmanager
async def _copy_of(box: Sandbox, home: str, python: str, view: ScoreView | None) -> AsyncIterator[GradingBox]:
    if view is not None and python:
        async with modes.shared(view, home=home, python=python) as grading:
            yield grading
        return
    [copy] = await box.fork(1)
    try:
        await modes.empty(copy, modes.VERIFIER)
        yield GradingBox(copy, Mode.SHARED)
    finally:
        await copy.close()


async def _reward_files(box: Sandbox, logs: str) -> dict[str, bytes]:
    return {name: await box.read(f"{logs}/{name}", max_bytes=MAX_REWARD_BYTES) for name in await _named(box, logs)}


async def _named(box: Sandbox, logs: str) -> list[str]:
    """The reward files that are there."""
    listed = (await box.run(["/bin/ls", "-A", "--", logs])).text.splitlines()
    return [name for name in REWARD_FILES if name in listed]


async def _differs(box: Sandbox, trusted: Path, target: Path) -> bool:
    """Whether a file of the trusted tests is no longer the same in the box; files beside them are not looked at."""
    try:
        await box.get_tree(TESTS, target)
    except BoxFileError:
        return True
    return await asyncio.to_thread(_has_other, trusted, target)


def _has_other(trusted: Path, target: Path) -> bool:
    names = [path.relative_to(trusted) for path in trusted.rglob("*") if path.is_file()]
    return any(
        not (target / name).is_file() or (target / name).read_bytes() != (trusted / name).read_bytes() for name in names
    )


def _rewrite(tests: Sequence[Path], target: Path, logs: str) -> None:
    """A copy of the tests in which the place of the reward has another name."""
    for place in tests:
        shutil.copytree(place, target, symlinks=True, dirs_exist_ok=True)
    for path in target.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_REWRITTEN_BYTES:
            content = path.read_bytes()
            if modes.VERIFIER.encode() in content:
                path.write_bytes(content.replace(modes.VERIFIER.encode(), logs.encode()))

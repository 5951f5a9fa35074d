"""How a check looks into a box and at this machine: commands, marked processes, waiting for a count."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from glmgym.errors import SandboxDead
from glmgym.sandbox import CommandError, CommandResult, Sandbox
from glmgym_sandboxes.selfcheck.check import NotApplicable, Unmet, equal


async def bash(box: Sandbox, script: str, *, timeout_s: float = 20.0) -> CommandResult:
    return await box.run(["bash", "-c", script], timeout_s=timeout_s)


async def python(box: Sandbox, code: str, *, timeout_s: float = 20.0) -> CommandResult:
    """Raises NotApplicable: the box has no python3."""
    if (await bash(box, "command -v python3")).exit_code != 0:
        raise NotApplicable("the box has no python3 to try it with")
    return await box.run(["python3", "-c", code], timeout_s=timeout_s)


async def still_true(box: Sandbox) -> None:
    """A fresh random word comes back from a command, or the box says that it is dead or has no shell any more.

    Raises:
        Unmet: neither.
    """
    word = uuid.uuid4().hex
    try:
        result = await box.run(["bash", "-c", "tr a-f A-F"], stdin=word.encode())
    except (SandboxDead, CommandError):
        return
    answer = word.translate(str.maketrans("abcdef", "ABCDEF")).encode()
    equal((result.exit_code, result.stdout), (0, answer), "the answer of a later command")


def new_mark() -> str:
    """A word that tells a process of one check from every other on the machine."""
    return f"mark-{uuid.uuid4().hex}"


async def count(box: Sandbox, mark: str) -> int:
    """How many processes in the box carry ``mark`` in their command line, the one that looks not counted."""
    pattern = f"{mark[:-1]}[{mark[-1]}]"
    return await number(bash(box, f"grep -lsa '{pattern}' /proc/[0-9]*/cmdline | wc -l"))


async def number(result: Awaitable[CommandResult]) -> int:
    """Raises Unmet: the command did not print a number."""
    stdout = (await result).stdout
    if not stdout.strip().isdigit():
        raise Unmet("a number", stdout)
    return int(stdout)


async def until(
    measure: Callable[[], Awaitable[int]],
    what: str = "of them",
    *,
    at_least: int = 0,
    at_most: int = 1 << 30,
    timeout_s: float = 10.0,
) -> None:
    """Wait for a count to come into a range.

    Raises:
        Unmet: it did not in time; holds the last count.
    """
    end = time.monotonic() + timeout_s
    while not at_least <= (seen := await measure()) <= at_most:
        if time.monotonic() > end:
            bound = f"at most {at_most}" if at_least == 0 else f"at least {at_least}"
            raise Unmet(f"{bound} {what} within {timeout_s:g} s", seen)
        await asyncio.sleep(0.02)


async def round_trip_s(box: Sandbox) -> float:
    """How long a trivial command takes: what a bound on time must allow for a slow backend or a busy machine."""
    began = time.monotonic()
    await box.run(["true"])
    return time.monotonic() - began


def host_processes(mark: str, *, anywhere: bool = False) -> list[int]:
    """Processes of this machine, boxes included, whose command line starts with ``mark``, or holds it."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if line.startswith(mark.encode()) or (anywhere and mark.encode() in line):
            found.append(int(entry))
    return found


async def visible_processes(mark: str, *, at_least: int) -> list[int]:
    """``host_processes``, waited for: in the middle of an exec a process has no command line.

    Raises:
        NotApplicable: the box runs elsewhere, so this machine shows none of its processes.
    """

    async def seen() -> int:
        return len(host_processes(mark))

    with contextlib.suppress(Unmet):
        await until(seen, at_least=at_least, timeout_s=5.0)
    if not (found := host_processes(mark)):
        raise NotApplicable("the box's processes do not show on this machine")
    return found


def kill_parent_of(pid: int) -> None:
    """Raises NotApplicable: we may not."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    try:
        os.kill(parent, signal.SIGKILL)
    except PermissionError:
        raise NotApplicable("this user may not kill the box's main process") from None

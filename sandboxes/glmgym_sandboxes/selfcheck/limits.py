"""Checks of limits: memory, processes, disk. What runs out ends a command, never the machine."""

from __future__ import annotations

from glmgym.errors import SandboxDead
from glmgym.sandbox import Limits
from glmgym_sandboxes.selfcheck.check import Subject, check, equal, holds
from glmgym_sandboxes.selfcheck.observe import bash, python, still_true


@check("limits")
async def a_full_disk_shows_in_the_command(subject: Subject) -> None:
    """X2, hazard 7: a command that fills the working directory or /tmp is told so."""
    for place in ("/work", "/tmp"):
        result = await bash(await subject.open(limits=Limits(disk_mb=4)), f"head -c 8000000 /dev/zero > {place}/big")
        holds(result.exit_code != 0, f"a failure to write 8 MB to {place}", "exit code 0")
        holds("No space left" in result.text, "'No space left' in the output", result.text)


@check("limits")
async def memory_is_limited_and_the_box_goes_on(subject: Subject) -> None:
    """hazard 6: a command that needs more than memory_mb fails; the box goes on."""
    box = await subject.open(limits=Limits(memory_mb=64))
    result = await python(
        box, "b = bytearray(32 << 20); print(len(b)); c = bytearray(b'x') * (256 << 20); print(len(c))"
    )
    holds(result.exit_code != 0, "a failure to take 288 MB", "exit code 0")
    holds(b"268435456" not in result.stdout, "no 256 MB in a box of 64 MB", result.stdout)
    equal((await bash(box, "echo fine")).stdout, b"fine\n", "the output of the next command")


@check("limits")
async def a_fork_bomb_is_contained(subject: Subject) -> None:
    """hazard 5: no more than ``pids`` processes; a box full of them is declared dead, or tells the truth."""
    box = await subject.open(limits=Limits(pids=30))
    result = await bash(box, "for i in $(seq 60); do sleep 20 & done; jobs -r | wc -l", timeout_s=3)
    holds(result.exit_code != 0, "no 60 processes in a box of 30", f"exit code 0, {result.text!r}")
    holds("fork" in result.text, "a failing fork in the output", result.text)
    await still_true(box)
    box = await subject.open(limits=Limits(pids=30))
    try:
        bomb = await bash(box, "b() { b | b & }; b; sleep 20", timeout_s=3)
    except SandboxDead:
        return
    holds(bomb.exit_code != 0, "no success of a fork bomb", "exit code 0")
    await still_true(box)

"""Checks of dead boxes: destroyed from inside, killed from outside, closed."""

from __future__ import annotations

from glmgym.errors import SandboxDead
from glmgym_sandboxes.selfcheck.check import Subject, check, equal, refused
from glmgym_sandboxes.selfcheck.observe import (
    bash,
    count,
    host_processes,
    kill_parent_of,
    new_mark,
    still_true,
    until,
    visible_processes,
)

DESTRUCTION = ("rm -rf /bin /usr/bin /etc", "kill -9 1", "kill -9 -1", "kill -STOP 1", "rm -rf /work/* /tmp/*")


@check("death", runs_commands=False)
async def a_closed_box_is_dead_and_closing_twice_is_fine(subject: Subject) -> None:
    """After close every call raises SandboxDead."""
    box = await subject.open()
    await box.close()
    await box.close()
    with refused(SandboxDead, ""):
        await box.read("/work/file")
    with refused(SandboxDead, ""):
        await box.run(["true"])


@check("death")
async def destruction_is_death_or_harmless(subject: Subject) -> None:
    """X2, hazard 15: after each of five attacks a command tells the truth or the box is dead; no made-up success."""
    for attack in DESTRUCTION:
        box = await subject.open()
        try:
            await bash(box, attack)
        except SandboxDead:
            continue
        await still_true(box)


@check("death")
async def a_killed_box_is_dead_for_the_call_under_way_and_all_later_ones(subject: Subject) -> None:
    """X2, hazard 10, hazard 15: when the main process is killed from outside, every call says that the box is gone."""
    box, mark = await subject.open(), new_mark()
    running = subject.start(bash(box, f"exec -a {mark} sleep 300"))
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    (sleeper,) = await visible_processes(mark, at_least=1)
    kill_parent_of(sleeper)
    with refused(SandboxDead, "is gone"):
        await running
    with refused(SandboxDead, "is gone"):
        await box.write("/work/x", b"")
    with refused(SandboxDead, "is gone"):
        await (await box.shell()).run("true")
    equal(host_processes(mark), [], "its processes left on this machine")


@check("death")
async def closing_leaves_no_process(subject: Subject) -> None:
    """Three setsid children of a box, seen on this machine, are gone with it."""
    box, mark = await subject.open(), new_mark()
    await bash(box, f"for i in 1 2 3; do (setsid bash -c 'exec -a {mark} sleep 300' &); done")
    await until(lambda: count(box, mark), "marked processes", at_least=3)
    equal(len(await visible_processes(mark, at_least=3)), 3, "its processes on this machine")
    await box.close()
    equal(host_processes(mark), [], "its processes left on this machine")

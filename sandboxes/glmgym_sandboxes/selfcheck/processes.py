"""Checks of process trees: timeouts, background children, orphans. Each marked process is seen alive before it is
missed: a test that only finds nothing would pass where nothing ever ran."""

from __future__ import annotations

import asyncio
import time

from glmgym_sandboxes.selfcheck.check import Subject, check, equal, holds
from glmgym_sandboxes.selfcheck.observe import bash, count, new_mark, number, round_trip_s, until


@check("processes")
async def a_timeout_kills_a_setsid_child(subject: Subject) -> None:
    """X1, hazard 1: parent, child and a double-forked setsid child all existed, and none is left."""
    box, mark = await subject.open(), new_mark()
    script = f"(setsid bash -c 'exec -a {mark} sleep 300' &) ; bash -c 'exec -a {mark} sleep 300'"
    running = subject.start(bash(box, script, timeout_s=3.0))
    await until(lambda: count(box, mark), "marked processes", at_least=2)
    result = await running
    equal((result.timed_out, result.exit_code), (True, 124), "timed_out, exit code")
    holds(2.9 < result.wall_s < 6.0, "an end after 3 s", f"{result.wall_s:.2f} s")
    equal(await count(box, mark), 0, "the marked processes left")


@check("processes")
async def a_timeout_keeps_the_output_so_far_and_spares_others(subject: Subject) -> None:
    """What another command started meanwhile, orphans of its session included, is not the timed-out command's."""
    box, mark = await subject.open(), new_mark()
    dying = subject.start(bash(box, "echo before; sleep 300", timeout_s=2.0))
    await asyncio.sleep(0.1)
    other = subject.start(bash(box, f"(bash -c 'exec -a {mark} sleep 300' &); sleep 2.5; echo done"))
    result = await dying
    equal((result.timed_out, result.stdout), (True, b"before\n"), "timed_out, stdout")
    equal((await other).stdout, b"done\n", "the other command's output")
    equal(await count(box, mark), 1, "the other command's background children")


@check("processes")
async def a_cancelled_call_leaves_nothing_running(subject: Subject) -> None:
    """hazard 1: giving up waiting is a timeout too."""
    box, mark = await subject.open(), new_mark()
    running = subject.start(bash(box, f"(setsid bash -c 'exec -a {mark} sleep 300' &); sleep 300"))
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: count(box, mark), "marked processes", at_most=0)


@check("processes")
async def a_background_child_holding_stdout_delays_nobody(subject: Subject) -> None:
    """hazard 2: the call returns in the 100 ms drain, the next one at once; the child lives on with its output.

    The best of three counts: on a busy machine any of them may be held up.
    """
    box, mark = await subject.open(), new_mark()
    allowed_s = 0.45 + 4 * await round_trip_s(box)
    script = f"bash -c 'exec -a {mark} sleep 300' & (sleep 5; echo late; echo alive > /work/alive) & echo ok"
    took_s = []
    for _ in range(3):
        began = time.monotonic()
        equal((await bash(box, script)).stdout, b"ok\n", "the output")
        equal((await bash(box, "echo next")).stdout, b"next\n", "the next command's output")
        took_s.append(time.monotonic() - began)
    holds(min(took_s) < allowed_s, f"both within {allowed_s:.2f} s", f"{min(took_s):.2f} s")
    holds(await count(box, mark) >= 1, "the child to live on", "no such process")
    is_there = "[ -s /work/alive ]; echo $((1 - $?))"  # it was not killed by a closed pipe
    await until(lambda: number(bash(box, is_there)), "files written by the child", at_least=1, timeout_s=20.0)


@check("processes")
async def no_zombies_are_left(subject: Subject) -> None:
    """hazard 11: orphans are waited for when they end."""
    box = await subject.open()
    await bash(box, "for i in $(seq 20); do (setsid true &) ; done")
    zombies = "cat /proc/[0-9]*/stat 2>&- | cut -d' ' -f3 | grep -c Z"
    await until(lambda: number(bash(box, zombies)), "zombies", at_most=0)


@check("processes")
async def a_command_cannot_reach_the_agent(subject: Subject) -> None:
    """The descriptors and the memory of the box's main process are out of reach, and nothing of it is inherited."""
    box = await subject.open()
    for attempt in (
        "cat /proc/1/fd/* > /dev/null",
        "echo forged > /proc/1/fd/11",
        "ls /proc/1/fd",
        "cat /proc/1/environ",
        "exec 9<> /proc/1/mem",
    ):
        holds((await bash(box, attempt)).exit_code != 0, f"a refusal of {attempt!r}", "exit code 0")
    look = "ls /proc/self/fd | tr '\\n' ' '"  # 0 1 2, and 3 for ls reading the directory
    for result in (await bash(box, look), await (await box.shell()).run(look)):
        equal(result.stdout, b"0 1 2 3 ", "the descriptors of a command")
    equal((await bash(box, "echo fine")).stdout, b"fine\n", "the output of the next command")

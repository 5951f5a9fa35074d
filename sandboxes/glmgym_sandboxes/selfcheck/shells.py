"""Checks of the persistent shell: what lasts between commands, and what a command may do to it."""

from __future__ import annotations

import asyncio

from glmgym_sandboxes.selfcheck.check import Subject, check, equal, holds
from glmgym_sandboxes.selfcheck.observe import bash, count, new_mark, until

ABUSE = (  # command, exit code, what its output holds
    ("exit 3", 3, b""),
    ("echo a; exec sleep 0.1", 0, b"a\n"),
    ("echo 'open", 2, b"unexpected EOF"),
    ("if true; then", 2, b"unexpected end of file"),
    ("cat <<END\none\ntwo\nEND", 0, b"one\ntwo\n"),
    ("cat <<END\nno end", 0, b"no end\n"),
    ("set -e; false", 1, b""),
    ("stty raw; echo b", 0, b"b\n"),
    ("echo c\\", 0, b"c"),
    ("echo $__token 0; false", 1, b" 0\n"),
    ("# nothing", 0, b""),
    ("", 0, b""),
    ("kill -9 $$", 137, b""),
    ("exec 1>&- 2>&-", 0, b""),
    ("cat", 0, b""),
    ("read line", 1, b""),
    ("trap 'echo bye' EXIT; exit 4", 4, b"bye\n"),
    ("echo é", 0, "é\n".encode()),
)


@check("shell")
async def cd_and_export_last(subject: Subject) -> None:
    """hazard 13: directory, variables and functions last; a command's stdin is empty, not the script."""
    box = await subject.open()
    shell = await box.shell()
    await shell.run("cd /tmp; export COLOUR=red; f() { echo f:$1; }")
    seen = (await shell.run("echo $PWD $COLOUR; f 1; cat; echo err >&2")).stdout
    equal(seen, b"/tmp red\nf:1\nerr\n", "the second command's output")
    equal((await bash(box, "echo $PWD$COLOUR")).stdout, b"/work\n", "the output of a command beside the shell")


@check("shell")
async def the_shell_survives(subject: Subject) -> None:
    """X4, hazard 13: after each of 18 abuses the result is right, and the next command works in the same directory."""
    box = await subject.open()
    for command, exit_code, output in ABUSE:
        shell = await box.shell()
        await shell.run("cd /tmp")
        result = await shell.run(command, timeout_s=5)
        equal((result.exit_code, result.timed_out), (exit_code, False), f"exit code and timed_out of {command!r}")
        holds(output in result.stdout, f"output of {command!r} with {output!r} in it", result.stdout)
        after = (await shell.run("echo next; pwd")).stdout
        holds(after.endswith(b"next\n/tmp\n"), f"'next' and '/tmp' after {command!r}", after)
        await shell.close()


@check("shell")
async def a_command_text_of_200_kib(subject: Subject) -> None:
    """hazard 14: the text of a command is not bounded by what an argument list may hold."""
    shell = await (await subject.open()).shell()
    result = await shell.run(f"v={'x' * 200 * 1024}; echo ${{#v}}")
    equal(result.stdout, b"204800\n", "the length the shell saw")


@check("shell")
async def a_shell_timeout_kills_the_command_and_keeps_the_place(subject: Subject) -> None:
    """X1: even a loop of the shell itself ends; what an earlier command started goes on."""
    box, earlier, mark = await subject.open(), new_mark(), new_mark()
    shell = await box.shell()
    await shell.run(f"cd /tmp; bash -c 'exec -a {earlier} sleep 300' &")
    await until(lambda: count(box, earlier), "processes of the earlier command", at_least=1)
    await asyncio.sleep(0.05)  # birth is told in steps of 10 ms
    running = subject.start(
        shell.run(f"(setsid bash -c 'exec -a {mark} sleep 300' &); while :; do :; done", timeout_s=3.0)
    )
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    equal((await running).timed_out, True, "timed_out")
    equal(await count(box, mark), 0, "the marked processes left")
    holds(await count(box, earlier) >= 1, "the earlier command's child to go on", "no such process")
    equal((await shell.run("pwd")).stdout, b"/tmp\n", "the directory afterwards")


@check("shell")
async def closing_a_shell_ends_its_processes(subject: Subject) -> None:
    """What was started in the background of a shell ends with it."""
    box, mark = await subject.open(), new_mark()
    shell = await box.shell()
    await shell.run(f"bash -c 'exec -a {mark} sleep 300' &")
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    await shell.close()
    equal(await count(box, mark), 0, "the marked processes left")


@check("shell")
async def closing_a_shell_ends_what_is_being_born(subject: Subject) -> None:
    """A child that is born while its parent is killed would be an orphan nobody looks for."""
    box, mark = await subject.open(), new_mark()
    births = f"for i in 1 2 3 4 5; do bash -c 'exec -a {mark} sleep 300' & done; wait"
    for wait_ms in range(8):
        shell = await box.shell()
        await shell.run(f"({births}; true) & ({births}; true) & ({births}; true) & sleep 0.00{wait_ms}")
        await shell.close()
        equal(await count(box, mark), 0, "the marked processes left")

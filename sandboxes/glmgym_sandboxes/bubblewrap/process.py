"""bwrap as a process: started so that it never ends half made, and seen off so that nothing of its box is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

from glmgym.errors import SandboxFailure
from glmgym_sandboxes import agent
from glmgym_sandboxes.bubblewrap.host import Host

END_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


async def spawn(host: Host, argv: Sequence[str], fds: Sequence[int]) -> asyncio.subprocess.Process:
    """Start bwrap. Cancelled, it still waits for the start and ends it in order: asyncio would kill it half made."""
    start = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=host.cwd,
            env=host.env,
            pass_fds=fds,
            start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone, which then ends its boxes in order
            limit=1 << 20,
        )
    )
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        process = await start
        assert process.stdin is not None
        process.stdin.close()
        await end(process)
        raise


async def end(process: asyncio.subprocess.Process) -> str:
    """See the process off, its input being closed, and return what it said on stderr.

    The agent leaves by itself at the end of its input, and bwrap ends only after everything in the box has; a kill
    comes second, since it would return before the box is empty.
    """
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.stderr is not None
    said = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            said = await process.stderr.read(4096)
    return said.decode("utf-8", "replace").strip()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let nothing run in the box whose bwrap has that pid. Blocks until all has stopped.

    Whoever reads a box's files from outside needs this: a directory that becomes a symlink at the right moment would
    otherwise lead to this machine's own files. If the driver is killed meanwhile, a shell that outlives it lets the
    agent go on, which finds its input at an end.

    Raises:
        SandboxFailure: something in the box does not stop, or the box is gone.
    """
    halted: set[int] = set()
    children = [str(child) for child, (parent, _, _) in agent.proc_table().items() if parent == pid]
    watch = ["/bin/sh", "-c", 'read -r _; kill -CONT "$@"', "sh", *children]
    # Its own session: Ctrl-C is for the driver. Its own silence: processes that ended since are not worth a word.
    watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        if not agent.halt(halted, lambda: _inside(pid), STOP_TIMEOUT_S) or not _inside(pid):
            raise SandboxFailure(f"{len(halted)} processes of the box of process {pid} could not be stopped")
        yield
    finally:
        _signal(halted, signal.SIGCONT)
        watcher.communicate()


def kill_inside(pid: int) -> None:
    """Kill everything in the box whose bwrap has that pid; bwrap ends by itself then."""
    _signal(_inside(pid), signal.SIGKILL)


def _inside(pid: int) -> set[int]:
    return agent.descendants(agent.proc_table(), pid) - {pid}


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

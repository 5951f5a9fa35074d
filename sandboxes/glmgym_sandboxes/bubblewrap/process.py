"""bwrap as a process: started so that it never ends half made, and seen off so that nothing of its box is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import IO

from glmgym.errors import SandboxFailure
from glmgym_sandboxes import agent
from glmgym_sandboxes.bubblewrap.host import Host

END_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
READ_LIMIT_BYTES = 1 << 20


class Process:
    """A child with three pipes and a session of its own: Ctrl-C is for the driver alone, which ends its boxes in order.

    Not asyncio's: that one, cancelled between its fork and its pipes, kills bwrap half made, and never returns where
    ``asyncio.run`` cancels every task at its end. Here the fork is one blocking call, as asyncio's is, and whatever
    comes between it and the pipes closes them, which ends a box in order.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, argv: Sequence[str], host: Host, fds: Sequence[int]) -> None:
        self._child = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=host.cwd,
            env=host.env,
            pass_fds=fds,
            start_new_session=True,
        )
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        """Negative for a signal; ``None`` until ``see_off`` has returned."""
        return self._child.returncode

    async def connect(self) -> None:
        """Open the pipes. Cancelled, or with an OSError, it closes them and sees the process off first."""
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(self.see_off)
            for pipe in (stdin := self._child.stdin, stdout := self._child.stdout, stderr := self._child.stderr):
                assert pipe is not None
                failing.callback(pipe.close)
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
            transport, _ = await loop.connect_write_pipe(lambda: protocol, stdin)
            failing.callback(transport.abort)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
            self.stdout = await _reader(stdout, failing)
            self.stderr = await _reader(stderr, failing)
            failing.pop_all()

    async def see_off(self) -> None:
        """Return when it has ended, its input being closed.

        The agent leaves by itself at the end of its input, and bwrap ends only after everything in the box has; a kill
        comes second, since it would return before the box is empty.
        """
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._exit()
        except TimeoutError:
            self._child.kill()
            await self._exit()

    async def _exit(self) -> None:
        if self._child.poll() is not None:
            return
        try:
            ended = os.pidfd_open(self.pid)
        except OSError:  # a kernel before 5.3 has none
            await asyncio.to_thread(self._child.wait)
        else:
            await _readable(ended)
            self._child.poll()


async def spawn(argv: Sequence[str], host: Host, fds: Sequence[int] = ()) -> Process:
    """Start a program as the host says. Cancelled, it still sees the process off.

    Raises:
        OSError: it cannot be started.
    """
    process = Process(argv, host, fds)
    await process.connect()
    return process


async def end(process: Process) -> str:
    """See the process off, its input being closed, and return what it said on stderr."""
    await process.see_off()
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


async def _reader(pipe: IO[bytes] | None, failing: contextlib.AsyncExitStack) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=READ_LIMIT_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    failing.callback(transport.close)
    return reader


async def _readable(fd: int) -> None:
    """Wait until there is something to read; takes the descriptor over."""
    loop, happened = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, happened.set)
    try:
        await happened.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)

"""Directory trees on this machine's side: read one to send it to a box, and build one from what a box sends.

Pieces are those of the agent's protocol, made and read by the same code here and there. What comes out of a box is
judged here, whatever its agent claims to have judged: kinds, names, amounts. Files are touched in threads, one piece at
a time, so the event loop never waits for a disk and no tree is ever held in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from glmgym.sandbox import BoxFileError
from glmgym.threads import in_thread
from glmgym_sandboxes import agent


async def read_tree(source: Path) -> AsyncGenerator[bytes]:
    """The pieces of a directory of this machine.

    Raises:
        BoxFileError: it cannot be read, or holds a device, pipe or socket.
    """
    pieces = agent.pieces(_read(source))
    try:
        while piece := await in_thread(lambda: next(pieces, b"")):
            yield piece
    except (OSError, agent.TreeError) as error:
        raise BoxFileError(f"{source}: {agent.said_by(error)}") from error
    finally:
        pieces.close()


async def save_tree(pieces: AsyncGenerator[bytes], target: Path, *, about: str, max_bytes: int, max_files: int) -> None:
    """Build ``target`` from the pieces a box sends; it appears whole or not at all.

    Of a mode only the right to execute is kept (0755 or 0644), and no time. ``max_files`` counts directories too.

    Raises:
        BoxFileError: ``target`` exists or cannot be written; or the pieces hold anything but files and directories, a
            bad name, or more than allowed. The first such path is named.
    """
    building = _Building(target, max_bytes, max_files)
    try:
        try:
            await in_thread(building.begin)
            await pump(pieces, lambda piece: in_thread(lambda: building.add(piece)))
            await in_thread(building.finish)
        finally:
            await in_thread(building.discard)
    except (OSError, ValueError, agent.TreeError) as error:
        raise BoxFileError(f"{about}: {agent.said_by(error)}") from error


async def pump(pieces: AsyncGenerator[bytes], send: Callable[[bytes], Awaitable[object]]) -> None:
    """Send every piece in order, each while the next one is fetched.

    The first to fail ends both; when this returns or raises, nothing goes on behind it.
    """
    under_way: list[asyncio.Future[Any]] = []
    try:
        while True:
            fetching = asyncio.ensure_future(anext(pieces, b""))
            under_way.append(fetching)
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if not fetching.result():
                return
            under_way = [asyncio.ensure_future(send(fetching.result()))]
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await pieces.aclose()


def _read(source: Path) -> Iterator[agent.Record]:
    """A generator, so that even the first look at the disk is taken in a thread; ``source`` itself may be a symlink."""
    yield from agent.read_tree(os.fsencode(os.path.realpath(source)), agent.LINKED)


class _Building:
    """``target`` while it is built, under another name beside it. Blocking."""

    def __init__(self, target: Path, max_bytes: int, max_files: int) -> None:
        self._target, self._path = target, ""
        self._cleaning = contextlib.ExitStack()
        self._bytes_left, self._files_left = max_bytes, max_files
        self._allowed = f"more than the {max_bytes} bytes and {max_files} files allowed"

    def begin(self) -> None:
        self._refuse_to_replace()
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._path = tempfile.mkdtemp(prefix=f".{self._target.name}.", dir=self._target.parent)
        self._cleaning.callback(self._remove)
        self._writer = agent.TreeWriter(agent.open_directory(os.fsencode(self._path)), merge=False, made=True)
        self._cleaning.callback(self._writer.close)

    def add(self, piece: bytes) -> None:
        for kind, mode, _, name, content in agent.records(piece):
            if kind not in (*agent.TAKEN[agent.REGULAR], agent.MORE, agent.END):
                raise self._writer.refusal(name, "is neither a file nor a directory")
            if kind == agent.MORE and not content:  # which could go on for ever
                raise self._writer.refusal(name, "an empty piece of a file")
            self._bytes_left -= len(content)
            self._files_left -= kind in agent.TAKEN[agent.REGULAR]
            if self._bytes_left < 0 or self._files_left < 0:
                raise self._writer.refusal(name, f"the tree has {self._allowed}")
            runs = kind == agent.END or mode & 0o100
            self._writer.add(kind, 0o755 if runs else 0o644, time.time_ns(), name, content)

    def finish(self) -> None:
        if not self._writer.is_whole:
            raise ValueError("the tree has no end")
        self._refuse_to_replace()  # rename would, if it is an empty directory
        os.rename(self._path, self._target)

    def discard(self) -> None:
        """Leave nothing behind but what ``finish`` finished."""
        self._cleaning.close()

    def _remove(self) -> None:
        if os.path.lexists(self._path):
            shutil.rmtree(self._path)

    def _refuse_to_replace(self) -> None:
        if os.path.lexists(self._target):
            raise FileExistsError(17, f"{self._target} exists already")

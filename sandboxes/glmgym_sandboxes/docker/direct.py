"""A way to an agent that spares the engine: a Unix socket in a directory that the container is given.

Through the engine each piece passes two more processes, there and back, which costs more than what most commands do.
The socket is there while a box starts: the agent is the first to connect, before any command runs, and nobody else can.
On this machine the directory lies in one that is closed to other users.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from glmgym import scratch

SOCKET = "agent"  # in the directory that a box sees as PLACE
PLACE = "/run/glmgym"
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Listener:
    """``directory`` is what the container must see as ``PLACE``; see ``client.Shortcut`` for the rest."""

    directory: Path
    listening: socket.socket
    path: str = f"{PLACE}/{SOCKET}"

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection, _ = await asyncio.get_running_loop().sock_accept(self.listening)
        return await asyncio.open_unix_connection(sock=connection, limit=BUFFER_BYTES)


@contextlib.asynccontextmanager
async def listen() -> AsyncIterator[Listener]:
    """A socket for one agent; it and its directory go on leaving, and a connection that was accepted stays.

    Raises:
        OSError: it cannot be made.
    """
    place = await asyncio.to_thread(scratch.new_place)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.setblocking(False)
            yield Listener(await asyncio.to_thread(_bind, listening, place), listening)
    finally:
        await asyncio.to_thread(scratch.remove, place)


def _bind(listening: socket.socket, place: Path) -> Path:
    directory = place / "box"
    directory.mkdir()
    directory.chmod(0o755)
    path = directory / SOCKET
    listening.bind(str(path))
    path.chmod(0o666)  # the box's user may be any
    listening.listen(1)
    return directory

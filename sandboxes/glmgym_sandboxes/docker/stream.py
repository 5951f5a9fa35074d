"""The attached streams of a container: one raw connection to the engine, taken over from HTTP.

Owns the wire format: input goes out as it is, output arrives in pieces behind 8-byte headers (stream, three zeros,
length), which are taken apart here. Holding this connection is what keeps a box alive: the engine closes the
container's input when it breaks, whoever broke it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

from glmgym_sandboxes.docker.engine import EngineError

CONNECT_TIMEOUT_S = 30.0
BUFFER_BYTES = 1 << 20
STDERR_BYTES = 2048  # of its end kept, for a box's last words
STDOUT, STDERR = 1, 2


@dataclass(slots=True)
class Attached:
    """``reader`` gives the container's stdout, ``writer`` is its stdin; closing the writer ends the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stderr: bytes = b""
    ended_by_engine: bool = False
    pump: asyncio.Task[None] | None = None


async def attach(socket: str, container: str) -> Attached:
    """Take over the streams of a container that is created and not started yet, so that no output is missed.

    Raises:
        EngineError: the engine refuses, or cannot be reached.
    """
    query = "stream=1&stdin=1&stdout=1&stderr=1"
    request = (
        f"POST /containers/{container}/attach?{query} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            raw, writer = await asyncio.open_unix_connection(socket, limit=BUFFER_BYTES)
            try:
                writer.write(request.encode())
                await _accept(raw)
            except BaseException:
                writer.close()
                raise
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        raise EngineError(0, f"attach to {container}: {type(error).__name__}: {error}") from error
    attached = Attached(asyncio.StreamReader(limit=BUFFER_BYTES), writer)
    attached.pump = asyncio.create_task(_pump(raw, attached), name=f"streams of {container}")
    return attached


async def _accept(raw: asyncio.StreamReader) -> None:
    """Read the answer's head; 101 means that the connection is ours now, and podman says 200 for the same."""
    head = (await raw.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    if status in (101, 200):
        return
    said = (await raw.read(BUFFER_BYTES)).decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):  # JSON or plain text, depending on how far it came
        said = json.loads(said)["message"]
    raise EngineError(status, said)


async def _pump(raw: asyncio.StreamReader, attached: Attached) -> None:
    try:
        while True:
            header = await raw.readexactly(8)
            piece = await raw.readexactly(int.from_bytes(header[4:], "big"))
            if header[0] == STDOUT:
                attached.reader.feed_data(piece)
            elif header[0] == STDERR:
                attached.stderr = (attached.stderr + piece)[-STDERR_BYTES:]
    except (asyncio.IncompleteReadError, ConnectionError):
        attached.ended_by_engine = not attached.writer.is_closing()
        attached.reader.feed_eof()

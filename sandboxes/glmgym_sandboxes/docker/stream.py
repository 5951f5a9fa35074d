"""The attached streams of a container: one raw connection to the engine, taken over from HTTP.

Owns the wire format: input goes out as it is, output arrives in pieces behind 8-byte headers (stream, three zeros,
length), which are taken apart here. Holding this connection is what keeps a box alive: the engine closes the
container's input when it breaks, whoever broke it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from glmgym_sandboxes.docker.engine import EngineError

CONNECT_TIMEOUT_S = 30.0
BUFFER_BYTES = 1 << 20
STDERR_BYTES = 2048  # of its end kept, for a box's last words
HEADER_BYTES = 8
STDOUT, STDERR = 1, 2


class Attached:
    """The streams of a container: ``read`` gives its stdout, ``writer`` is its stdin; closing that ends the connection.

    ``stderr`` is the end of what it has said there; ``ended_by_engine``, that the connection broke at the other side.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.stderr = b""
        self.ended_by_engine = False
        self._reader = reader
        self._incoming = bytearray()

    async def read(self, n: int = -1, /) -> bytes:
        """What has arrived of stdout, waiting if that is nothing; empty at the end."""
        while True:
            chunk = b""
            with contextlib.suppress(ConnectionError):
                chunk = await self._reader.read(n)
            if not chunk:
                self.ended_by_engine = not self.writer.is_closing()
                return b""
            self._incoming += chunk
            if arrived := self._stdout():
                return arrived

    def _stdout(self) -> bytes:
        """Take the whole pieces at the front apart."""
        arrived = []
        while len(self._incoming) >= HEADER_BYTES:
            stream, end = self._incoming[0], HEADER_BYTES + int.from_bytes(self._incoming[4:HEADER_BYTES], "big")
            if len(self._incoming) < end:
                break
            piece = bytes(self._incoming[HEADER_BYTES:end])
            del self._incoming[:end]
            if stream == STDOUT:
                arrived.append(piece)
            elif stream == STDERR:
                self.stderr = (self.stderr + piece)[-STDERR_BYTES:]
        return b"".join(arrived)


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
    return Attached(raw, writer)


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

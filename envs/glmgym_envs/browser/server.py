"""A small HTTP server on 127.0.0.1 for pages of our own: one function from request to response, a port of its own.

It speaks as much HTTP/1.1 as a browser on the same machine needs: GET and POST, bodies with a length, keep-alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, unquote, urlsplit

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` is decoded; ``query`` and ``form`` hold the last value of each name."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes = b""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """A running server; ``origin`` is ``"http://127.0.0.1:PORT"``."""

    def __init__(self, handler: Handler, server: asyncio.Server, writers: set[asyncio.StreamWriter]) -> None:
        self._handler = handler
        self._server = server
        self._writers = writers
        self.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    @classmethod
    async def start(cls, handler: Handler) -> Server:
        """Listen on a free port of the loopback, on the running event loop."""
        writers: set[asyncio.StreamWriter] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            try:
                while await _serve_one(handler, reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError):
                logger.debug("a browser closed its connection")
            finally:
                writers.discard(writer)
                writer.close()

        return cls(handler, await asyncio.start_server(serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES), writers)

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        self._server.close()
        for writer in list(self._writers):
            writer.close()


async def _serve_one(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; False when the connection is to be closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return await _send(writer, Response(b"head too large", 431))
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length", "0")
    if len(parts) != 3 or not length.isdigit() or "transfer-encoding" in headers:
        return await _send(writer, Response(b"bad request", 400))
    if int(length) > MAX_BODY_BYTES:
        return await _send(writer, Response(b"body too large", 413))
    body = await reader.readexactly(int(length))
    if parts[0] not in ("GET", "POST"):
        return await _send(writer, Response(b"method not allowed", 405))
    target = urlsplit(parts[1])
    is_form = headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    request = Request(
        parts[0],
        unquote(target.path),
        dict(parse_qsl(target.query, keep_blank_values=True)),
        dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)) if is_form else {},
        {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()},
    )
    await _send(writer, await handler(request))
    return headers.get("connection", "").lower() != "close"


async def _send(writer: asyncio.StreamWriter, response: Response) -> bool:
    """Write a response. Returns False: the caller that sends an error closes the connection with it."""
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + response.body)
    await writer.drain()
    return False

"""Search-R1's ``/retrieve`` over HTTP, on asyncio alone, so that code written against its retriever works unchanged.

``POST /retrieve`` with ``{"queries": [...], "topk": 3, "return_scores": true}`` answers ``{"result": [[{"document":
{"contents": "\\"Title\\"\\ntext"}, "score": 1.5}, ...], ...]}``, one list per query; without scores the items are the
documents themselves. What is wrong with a request is said as 400 and ``{"error": sentence}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio import StreamReader, StreamWriter
from http import HTTPStatus
from typing import Any

from pydantic import Field

from glmgym.errors import BoundaryFailure, ConfigError, EnvFailure, boundary
from glmgym.settings import Settings, parse_settings
from glmgym_envs.search.index import Hit
from glmgym_envs.search.library import Retriever

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
MAX_QUERIES = 1024  # of one request
MAX_QUERY_CHARS = 10_000
MAX_TOPK = 100
MAX_AT_ONCE = 8  # searches that run at the same time, whatever the number of requests
_IDLE_S = 60.0  # a connection that sends nothing for so long is closed
_GOODBYE_S = 2.0  # what a refused body gets to run out
_MAX_HEADERS = 100


class Request(Settings):
    """The body of a request, with Search-R1's defaults."""

    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=3, ge=1, le=MAX_TOPK)
    return_scores: bool = False


class _BadRequest(Exception):
    """A sentence for the caller, and the status that goes with it."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


async def serve(retriever: Retriever, *, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Start a server; port 0 takes a free one. The caller closes it."""
    slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while await _exchange(reader, writer, retriever, slots):
                pass
            await _see_off(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the caller went away
        except asyncio.CancelledError:
            pass  # the loop ends; nobody waits for a connection, and asyncio would log it as an error
        finally:
            writer.close()

    return await asyncio.start_server(connected, host, port, limit=1 << 16)


async def _see_off(reader: StreamReader, writer: StreamWriter) -> None:
    """Close in the order that lets the last answer arrive: a caller cut off while it still sends would not read it."""
    writer.write_eof()
    async with asyncio.timeout(_GOODBYE_S):
        while await reader.read(1 << 16):
            pass


def contents(hit: Hit) -> dict[str, Any]:
    """A hit as Search-R1's document: the title in quotes, a line end, the text; the id as well."""
    return {"id": hit.document, "contents": f'"{hit.title}"\n{hit.text.strip()}'}


async def _exchange(reader: StreamReader, writer: StreamWriter, retriever: Retriever, slots: asyncio.Semaphore) -> bool:
    """One request and its answer; False when the connection is to be closed."""
    keep, status = False, HTTPStatus.OK
    try:
        async with asyncio.timeout(_IDLE_S):
            head = await _read_head(reader)
            if head is None:
                return False
            method, path, headers = head
            body = await _read_body(reader, headers)
        keep = headers.get("connection", "keep-alive").lower() != "close"
        answer = await _answer(method, path, body, retriever, slots)
    except _BadRequest as error:
        keep = keep and error.status is not HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        status, answer = error.status, {"error": str(error)}
    except BoundaryFailure as failure:
        logger.warning("search server: %s", failure)
        status, answer = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(failure)}
    payload = json.dumps(answer, ensure_ascii=False).encode()
    writer.write(
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode()
        + payload
    )
    await writer.drain()
    return keep


async def _answer(
    method: str, path: str, body: bytes, retriever: Retriever, slots: asyncio.Semaphore
) -> dict[str, Any]:
    if path.partition("?")[0] != "/retrieve":
        raise _BadRequest(HTTPStatus.NOT_FOUND, f"no {path} here; POST /retrieve")
    if method != "POST":
        raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not possible here; POST /retrieve")
    request = _read_request(body)

    async def one(query: str) -> list[Hit]:
        async with slots:
            return await retriever.search(query, request.topk or 3)

    with boundary(EnvFailure, "retrieve"):
        found = await asyncio.gather(*(one(query) for query in request.queries))
    if request.return_scores:
        return {"result": [[{"document": contents(hit), "score": hit.score} for hit in hits] for hits in found]}
    return {"result": [[contents(hit) for hit in hits] for hits in found]}


def _read_request(body: bytes) -> Request:
    try:
        data = json.loads(body)
    except ValueError as error:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "the body must be a JSON object with 'queries'")
    try:
        request = parse_settings(Request, data, where="request")
    except ConfigError as error:
        raise _BadRequest(HTTPStatus.BAD_REQUEST, str(error)) from error
    if any(len(query) > MAX_QUERY_CHARS for query in request.queries):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, f"a query has more than {MAX_QUERY_CHARS} characters")
    return request


async def _read_head(reader: StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Method, path and headers by lower-case name; ``None`` at the end of the connection."""
    try:
        first = await reader.readline()
        if not first:
            return None
        parts = first.decode("latin-1").split()
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _BadRequest(HTTPStatus.BAD_REQUEST, "that is no HTTP/1 request")
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > _MAX_HEADERS:
                raise _BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
    except ValueError as error:  # a line beyond the reader's limit
        raise _BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "a header is too long") from error
    return parts[0], parts[1], headers


async def _read_body(reader: StreamReader, headers: dict[str, str]) -> bytes:
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not length.isdecimal():
        raise _BadRequest(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
    if int(length) > MAX_BODY_BYTES:
        raise _BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MAX_BODY_BYTES} bytes")
    return await reader.readexactly(int(length))

"""A judge for machines without one: a real HTTP server on loopback that answers by a Python rule.

It speaks the part of the OpenAI protocol that ``Judge`` needs, and can be told to misbehave the way endpoints do. For
tests, dry runs and offline use; it has no access control, so it listens on loopback only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

_MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. ``content`` is what the model says; ``body`` replaces the whole completion around it."""

    content: str = ""
    status: int = 200
    delay_s: float = 0.0
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs_up: bool = False  # close the connection without a word


def verdict(score: float, reason: str = "") -> Answer:
    """The answer of a judge that knows its manners."""
    return Answer(json.dumps({"score": score, "reason": reason}))


@asynccontextmanager
async def serve_judge(rule: Callable[[Mapping[str, Any]], Answer], *, port: int = 0) -> AsyncIterator[str]:
    """Answer chat completions by ``rule``, which gets the request's JSON; yields the URL for ``[rewards.judge]``.

    Args:
        port: 0 takes a free one.
    """
    talking: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        try:
            await _talk(reader, writer, rule)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            talking.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in tuple(talking):
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rule: Callable[[Mapping[str, Any]], Answer]
) -> None:
    """One request, one answer, and goodbye."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = int(fields.get("content-length", 0))
    if not head[0].startswith("POST /v1/chat/completions ") or length > _MAX_BODY_BYTES:
        answer, request = Answer(status=404, body="{}"), {}
    else:
        request = json.loads(await reader.readexactly(length))
        answer = rule(request)
    await asyncio.sleep(answer.delay_s)
    if answer.hangs_up:
        return
    body = (_completion(request, answer.content) if answer.body is None else answer.body).encode()
    lines = [
        f"HTTP/1.1 {answer.status} {'OK' if answer.status == 200 else 'Trouble'}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    await writer.drain()


def _completion(request: Mapping[str, Any], content: str) -> str:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "model": request.get("model", ""), "choices": [choice]})

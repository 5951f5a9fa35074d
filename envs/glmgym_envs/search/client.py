"""A client of any server that speaks Search-R1's ``/retrieve``, as a retriever for ``Asking``."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from glmgym.errors import ConfigError, EnvFailure, boundary
from glmgym_envs.search.index import Hit

_MAX_BYTES = 32 << 20  # of an answer


class RetrieveClient:
    """Searches over HTTP, on sockets of the event loop alone.

    Args:
        url: the address, such as ``http://127.0.0.1:8000/retrieve``.

    Raises:
        ConfigError: the address is none of http or https.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self.url = url
        self._address = urlsplit(url)
        self._timeout_s = timeout_s
        if self._address.scheme not in ("http", "https") or not self._address.hostname:
            raise ConfigError(f"retriever {url!r}: wanted an address such as http://127.0.0.1:8000/retrieve")

    async def search(self, query: str, k: int) -> list[Hit]:
        """The hits of one query.

        Raises:
            EnvFailure: the server cannot be reached, says no, or answers something else than the contract.
        """
        (hits,) = await self.search_all([query], k)
        return hits

    async def search_all(self, queries: list[str], k: int) -> list[list[Hit]]:
        """The hits of each query, in one request. Raises EnvFailure as ``search`` does."""
        body = json.dumps({"queries": queries, "topk": k, "return_scores": True}).encode()
        with boundary(EnvFailure, f"retrieve from {self.url}"):
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._post(body)
            if status != 200:
                raise ConnectionError(f"status {status}: {answer[:2_000].decode('utf-8', 'replace')}")
            result = json.loads(answer)["result"]
            if len(result) != len(queries):
                raise ValueError(f"{len(queries)} queries were sent, {len(result)} were answered")
            return [[_hit(item) for item in items] for items in result]

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body. The request is HTTP/1.0, so that the answer ends with the connection and has no chunks."""
        at, is_secure = self._address, self._address.scheme == "https"
        port = at.port or (443 if is_secure else 80)
        reader, writer = await asyncio.open_connection(at.hostname, port, ssl=is_secure or None)
        try:
            target = (at.path or "/") + (f"?{at.query}" if at.query else "")
            writer.write(
                f"POST {target} HTTP/1.0\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            answer = bytearray()
            while part := await reader.read(1 << 16):
                answer += part
                if len(answer) > _MAX_BYTES:
                    raise ValueError(f"the answer has more than {_MAX_BYTES} bytes")
            return int(head.split(maxsplit=2)[1]), bytes(answer)
        finally:
            writer.close()


def _hit(item: dict[str, Any]) -> Hit:
    """An item with its score, or a bare document of a server that gives none."""
    document = item.get("document", item)
    title, _, text = document["contents"].partition("\n")
    title = title.strip().strip('"')
    return Hit(str(document.get("id", title)), 1, title, text, float(item.get("score", 0.0)))

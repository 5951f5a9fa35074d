"""Chat completions of an OpenAI-compatible endpoint, asked for until one comes. What one holds is for the caller."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from glmgym.errors import ConfigError
from glmgym.settings import Settings

TRANSIENT = frozenset({408, 409, 425, 429})  # and every 5xx
QUOTED_CHARS = 200  # kept of an answer, in a message
MAX_WAIT_S = 60.0  # whatever Retry-After asks


class NoCompletionError(Exception):
    """The message says what went wrong last. ``status`` is that of an answer which another try would not change."""

    def __init__(self, said: str, status: int = 0, body: str = "") -> None:
        super().__init__(said)
        self.status, self.body = status, body


class CompletionSettings(Settings):
    """Where an endpoint is, and how often it is asked."""

    url: str = Field(pattern=r"^https?://")  # with its version: http://localhost:8000/v1
    model: str  # as the endpoint calls it
    timeout_s: float = Field(120.0, gt=0)  # of one request
    retries: int = Field(4, ge=0)  # further requests after a time-out, a broken connection, a 429 or a 5xx
    backoff_s: float = Field(0.5, ge=0)  # before the first retry; doubles each time
    max_live: int = Field(16, ge=1)  # requests at once
    api_key_env: str = ""  # name of the environment variable with the key, if one is needed


class Completions:
    """A client. Use within one event loop.

    Raises:
        ConfigError: the extra is missing, or the key is not in the environment; the message begins with ``where``.
    """

    def __init__(self, settings: CompletionSettings, where: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigError(f"{where} needs httpx: pip install 'glmgym[judge]'") from error
        headers = {}
        if settings.api_key_env:
            if not os.environ.get(settings.api_key_env):
                raise ConfigError(f"{where}: ${settings.api_key_env} is not set")
            headers["Authorization"] = f"Bearer {os.environ[settings.api_key_env]}"
        self.url = f"{settings.url.rstrip('/')}/chat/completions"
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_live)
        self._broken = httpx.TransportError
        # The whole request has a time budget below; httpx's own count each phase of it apart.
        limits = httpx.Limits(max_connections=settings.max_live)
        self._client = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, request: Mapping[str, Any], told: Callable[[str], object] = lambda trouble: None) -> str:
        """The body of the first good answer; ``told`` hears at once of each request that gave none.

        Raises:
            NoCompletionError: none after all retries, or an answer that another try would not change.
        """
        settings = self._settings
        for retry in itertools.count():
            wait_s = settings.backoff_s * 2**retry
            try:
                async with self._slots, asyncio.timeout(settings.timeout_s):
                    response = await self._client.post(self.url, json=request)
            except TimeoutError:
                trouble = f"no answer within {settings.timeout_s:g} s"
            except self._broken as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == 200:
                    return response.text
                trouble = f"HTTP {response.status_code}: {response.text[:QUOTED_CHARS]}"
                if response.status_code < 500 and response.status_code not in TRANSIENT:
                    raise NoCompletionError(f"{self.url}: {trouble}", response.status_code, response.text)
                wait_s = max(wait_s, _retry_after_s(response.headers.get("Retry-After", "")))
            told(trouble)
            if retry >= settings.retries:
                break
            await asyncio.sleep(min(wait_s, MAX_WAIT_S))
        raise NoCompletionError(f"in {settings.retries + 1} requests; latest: {trouble}")


def _retry_after_s(header: str) -> float:
    """Seconds that the endpoint asks to wait; its other form, a date, is left to our own backoff."""
    return float(header) if header.isdecimal() else 0.0

"""A policy behind an OpenAI-compatible endpoint: chat completions with tools over HTTP.

Owned here: what is sent, how often it is tried, and how an answer becomes a message. A call whose arguments are no JSON
object is the policy's mistake and is answered by the environment; an answer that is no completion, or none in time, is
an engine failure, never a score of 0.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from glmgym.errors import ConfigError, EngineFailure, boundary
from glmgym.evaluation.attempt import content_digest
from glmgym.evaluation.player import ContextFull, Reply, Speaker
from glmgym.messages import Message, ToolCall, ToolSpec
from glmgym.rollout import Job
from glmgym.settings import Settings

_TRANSIENT = frozenset({408, 409, 425, 429})  # and every 5xx
_QUOTED_CHARS = 200  # kept of an answer, in a message
_CONTEXT_WORDS = ("context length", "context_length", "maximum context", "too many tokens")
_MAX_WAIT_S = 60.0  # whatever Retry-After asks


class EndpointRefused(EngineFailure):
    """The endpoint answered that such a request will never do (a wrong key, an unknown model)."""

    retryable = False


class EndpointSettings(Settings):
    """An OpenAI-compatible endpoint."""

    url: str = Field(pattern=r"^https?://")  # with its version: http://localhost:8000/v1
    model: str  # as the endpoint calls it
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    timeout_s: float = Field(120.0, gt=0)  # of one request
    retries: int = Field(4, ge=0)  # further requests after a time-out, a broken connection, a 429 or a 5xx
    backoff_s: float = Field(0.5, ge=0)  # before the first retry; doubles each time
    max_live: int = Field(16, ge=1)  # requests at once
    api_key_env: str = ""  # name of the environment variable with the key, if one is needed


class EndpointPolicy:
    """Asks an endpoint for every turn. Use within one event loop.

    The digest stands for the address, the model's name and the temperature: what serves under a name may change
    unseen, which no client can tell.

    Raises:
        ConfigError: the extra is missing, or the key is not in the environment.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigError("--endpoint needs httpx: pip install 'glmgym[judge]'") from error
        headers = {}
        if settings.api_key_env:
            if not os.environ.get(settings.api_key_env):
                raise ConfigError(f"--api-key-env {settings.api_key_env}: ${settings.api_key_env} is not set")
            headers["Authorization"] = f"Bearer {os.environ[settings.api_key_env]}"
        self.settings = settings
        self._slots = asyncio.Semaphore(settings.max_live)
        self._broken = httpx.TransportError
        # The whole request has a time budget below; httpx's own count each phase of it apart.
        limits = httpx.Limits(max_connections=settings.max_live)
        self._client = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)

    @property
    def name(self) -> str:
        return f"{self.settings.model} at {self.settings.url}"

    @property
    def digest(self) -> str:
        return content_digest([self.settings.url, self.settings.model, self.settings.temperature])

    def speaker(self, job: Job) -> Speaker:
        return self

    async def close(self) -> None:
        await self._client.aclose()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        """One turn.

        Raises:
            ContextFull: the endpoint says so.
            EngineFailure: no completion after every retry, or a refusal.
        """
        request: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [wire_message(message) for message in messages],
            "temperature": self.settings.temperature,
            "max_tokens": max_tokens,
            "seed": seed % 2**31,
        }
        if tools:
            request["tools"] = [tool.to_openai() for tool in tools]
        return read_completion(await self._post(request))

    async def _post(self, request: Mapping[str, Any]) -> str:
        """The body of the first good answer."""
        settings, url = self.settings, f"{self.settings.url.rstrip('/')}/chat/completions"
        for retry in itertools.count():
            wait_s = settings.backoff_s * 2**retry
            try:
                async with self._slots, asyncio.timeout(settings.timeout_s):
                    response = await self._client.post(url, json=request)
            except TimeoutError:
                trouble = f"no answer within {settings.timeout_s:g} s"
            except self._broken as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == 200:
                    return response.text
                trouble = f"HTTP {response.status_code}: {response.text[:_QUOTED_CHARS]}"
                if response.status_code < 500 and response.status_code not in _TRANSIENT:
                    said = response.text.lower()
                    if response.status_code in (400, 413, 422) and any(words in said for words in _CONTEXT_WORDS):
                        raise ContextFull(f"{url}: {trouble}")
                    raise EndpointRefused(f"{url}: {trouble}")
                wait_s = max(wait_s, _retry_after_s(response.headers.get("Retry-After", "")))
            if retry >= settings.retries:
                raise EngineFailure(f"{url}: no completion in {retry + 1} requests; latest: {trouble}")
            await asyncio.sleep(min(wait_s, _MAX_WAIT_S))
        raise AssertionError("unreachable")


def wire_message(message: Message) -> dict[str, Any]:
    """A message as the protocol has it: arguments as JSON text, and no lone surrogates, which UTF-8 cannot carry."""
    out = message.to_openai()
    out.pop("reasoning_content", None)  # endpoints differ on it, and most refuse what they do not know
    out["content"] = message.content.encode("utf-8", "replace").decode()
    for call in out.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return out


def read_completion(body: str) -> Reply:
    """The turn in a chat completion.

    Raises:
        EngineFailure: it is none.
    """
    with boundary(EngineFailure, f"no chat completion in {body[:_QUOTED_CHARS]!r}"):
        data = json.loads(body)
        choice = data["choices"][0]
        said = choice["message"]
        calls = tuple(_read_call(call, i) for i, call in enumerate(said.get("tool_calls") or ()))
        reasoning = said.get("reasoning_content") or said.get("reasoning")
        content = said.get("content") or ""
        if not isinstance(content, str):
            raise TypeError(f"its content is {content!r}")
        message = Message("assistant", content, reasoning if isinstance(reasoning, str) else None, calls)
        usage = data.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Reply(
            message,
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
            None if cached is None else int(cached),
            cut=choice.get("finish_reason") == "length",
        )


def _read_call(call: Mapping[str, Any], index: int) -> ToolCall:
    """A call; what is wrong with its arguments is the policy's to read about (T6)."""
    id, function = str(call.get("id") or f"call_{index}"), call["function"]
    name, text = str(function["name"]), function.get("arguments")
    if isinstance(text, dict):  # some servers decode it already
        return ToolCall(id, name, text)
    try:
        arguments = json.loads(text or "")
    except (ValueError, TypeError):
        return ToolCall(id, name, error=f"arguments of {name} are not JSON: {str(text)[:_QUOTED_CHARS]!r}")
    if not isinstance(arguments, dict):
        return ToolCall(id, name, error=f"arguments of {name} must be a JSON object, got {str(text)[:_QUOTED_CHARS]}")
    return ToolCall(id, name, arguments)


def _retry_after_s(header: str) -> float:
    """Seconds that the endpoint asks to wait; its other form, a date, is left to our own backoff."""
    return float(header) if header.isdecimal() else 0.0

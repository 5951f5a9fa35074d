"""A policy behind an OpenAI-compatible endpoint: chat completions with tools over HTTP.

Owned here: what is sent, how often it is tried, and how an answer becomes a message. A call whose arguments are no JSON
object is the policy's mistake and is answered by the environment; an answer that is no completion, or none in time, is
an engine failure, never a score of 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from glmgym.completions import QUOTED_CHARS, Completions, CompletionSettings, NoCompletionError
from glmgym.errors import EngineFailure, boundary
from glmgym.evaluation.attempt import content_digest
from glmgym.evaluation.player import ContextFull, Reply, Speaker
from glmgym.messages import Message, ToolCall, ToolSpec
from glmgym.rollout import Job

_CONTEXT_WORDS = ("context length", "context_length", "maximum context", "too many tokens")


class EndpointRefused(EngineFailure):
    """The endpoint answered that such a request will never do (a wrong key, an unknown model)."""

    retryable = False


class EndpointSettings(CompletionSettings):
    """An OpenAI-compatible endpoint as a policy."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)


class EndpointPolicy:
    """Asks an endpoint for every turn. Use within one event loop.

    The digest stands for the address, the model's name and the temperature: what serves under a name may change
    unseen, which no client can tell.

    Raises:
        ConfigError: the extra is missing, or the key is not in the environment.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._endpoint = Completions(settings, "--endpoint")

    @property
    def name(self) -> str:
        return f"{self.settings.model} at {self.settings.url}"

    @property
    def digest(self) -> str:
        return content_digest([self.settings.url, self.settings.model, self.settings.temperature])

    def speaker(self, job: Job) -> Speaker:
        return self

    async def close(self) -> None:
        await self._endpoint.close()

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
        try:
            return await self._endpoint.post(request)
        except NoCompletionError as error:
            if error.status in (400, 413, 422) and any(words in error.body.lower() for words in _CONTEXT_WORDS):
                raise ContextFull(str(error)) from None
            if error.status:
                raise EndpointRefused(str(error)) from None
            raise EngineFailure(f"{self._endpoint.url}: no completion {error}") from None


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
    with boundary(EngineFailure, f"no chat completion in {body[:QUOTED_CHARS]!r}"):
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
        return ToolCall(id, name, error=f"arguments of {name} are not JSON: {str(text)[:QUOTED_CHARS]!r}")
    if not isinstance(arguments, dict):
        return ToolCall(id, name, error=f"arguments of {name} must be a JSON object, got {str(text)[:QUOTED_CHARS]}")
    return ToolCall(id, name, arguments)

"""A model for machines without one: an OpenAI-compatible endpoint on loopback that answers by a rule, with tools.

For tests, dry runs and offline use. The server itself is that of ``glmgym.rewards.judge_server``; here is what a
completion with tool calls and usage looks like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from glmgym.evaluation.endpoint import wire_message
from glmgym.messages import Message
from glmgym.rewards import Answer, serve_judge

Rule = Callable[[Mapping[str, Any]], Message | Answer]  # of the request's JSON; an Answer misbehaves in its own way


def serve_model(rule: Rule, *, port: int = 0) -> AbstractAsyncContextManager[str]:
    """Answer chat completions by ``rule``; yields the URL for ``--endpoint``.

    Args:
        port: 0 takes a free one.
    """

    def answer(request: Mapping[str, Any]) -> Answer:
        said = rule(request)
        return said if isinstance(said, Answer) else Answer(body=completion(request, said))

    return serve_judge(answer, port=port)


def completion(request: Mapping[str, Any], message: Message, *, finish_reason: str | None = None) -> str:
    """The body of an answer; tokens are counted as words of the JSON text, which is enough to see them add up."""
    prompt = len(json.dumps(request.get("messages", [])).split())
    said = wire_message(message)
    sampled = len(json.dumps(said).split())
    reason = finish_reason or ("tool_calls" if message.tool_calls else "stop")
    if message.reasoning is not None:
        said["reasoning_content"] = message.reasoning
    return json.dumps(
        {
            "object": "chat.completion",
            "model": request.get("model", ""),
            "choices": [{"index": 0, "message": said, "finish_reason": reason}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
        }
    )

"""What an action's text means: tool calls in JSON, or else the final answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glmgym.messages import Message, ToolCall, assistant

FORM = '{"tool": NAME, "arguments": {...}}'


def read_action(text: str, turn: int) -> Message:
    """The assistant message that ``text`` stands for.

    ``{"tool": NAME, "arguments": {...}}`` calls one tool; an OpenAI assistant message (``content``, ``tool_calls``)
    calls several. Arguments may be an object or its JSON. A call that cannot be read is kept, with its own id and a
    sentence for the policy as its error; everything else is the final answer.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):
        return assistant(text)
    try:
        value = json.loads(stripped)
    except ValueError as error:
        looks_like_call = '"tool"' in stripped or '"tool_calls"' in stripped
        call = ToolCall(f"call_{turn}_0", "", error=f"the action is not valid JSON ({error}); write {FORM}")
        return assistant("", call) if looks_like_call else assistant(text)
    if "tool" in value:
        return assistant("", _call(f"call_{turn}_0", value["tool"], value.get("arguments", {})))
    if "tool_calls" not in value:
        return assistant(text)
    calls = value["tool_calls"]
    content = value.get("content") or ""
    if not isinstance(calls, list) or not isinstance(content, str):
        call = ToolCall(f"call_{turn}_0", "", error="tool_calls must be a list and content a text")
        return assistant("", call)
    return assistant(content, *(_openai_call(entry, f"call_{turn}_{at}") for at, entry in enumerate(calls)))


def _openai_call(entry: Any, default_id: str) -> ToolCall:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping):
        return ToolCall(default_id, "", error="a tool call needs a function with a name and arguments")
    id = entry.get("id")
    return _call(id if isinstance(id, str) and id else default_id, function.get("name"), function.get("arguments", {}))


def _call(id: str, name: Any, arguments: Any) -> ToolCall:
    if not isinstance(name, str) or not name:
        return ToolCall(id, "", error=f"the name of a tool must be a text, got {json.dumps(name)[:60]}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return ToolCall(id, name, error=f"the arguments of {name} are not valid JSON: {error}")
    if not isinstance(arguments, Mapping):
        got = json.dumps(arguments)[:60]
        return ToolCall(id, name, error=f"the arguments of {name} must be a JSON object, got {got}")
    return ToolCall(id, name, dict(arguments))

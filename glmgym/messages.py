"""What environments and chat templates speak: messages, tool calls and tool specifications. No token ids here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One callable tool as the policy sees it.

    ``parameters`` is a JSON schema of type ``object``; its property types decide how argument text is read back.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The ``{"type": "function", "function": {...}}`` form that chat templates expect."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call read out of an assistant turn.

    ``error`` is a sentence for the policy when the call is malformed (then ``arguments`` is empty); the environment
    answers such a call with an error observation instead of running it.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. ``reasoning`` and ``tool_calls`` belong to assistants, ``tool_call_id`` to tool results."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The dictionary form that chat templates and OpenAI-compatible endpoints expect."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out


def system(content: str) -> Message:
    return Message("system", content)


def user(content: str) -> Message:
    return Message("user", content)


def assistant(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message("assistant", content, reasoning=reasoning, tool_calls=calls)


def tool_result(call: ToolCall, content: str) -> Message:
    return Message("tool", content, tool_call_id=call.id)

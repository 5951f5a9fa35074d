"""GLM's wire format as pure functions: messages in, *parts* out. Owned here: what a turn looks like in either dialect.

A part is a ``Mark`` (one special token) or plain text. Text parts are never searched for special tokens, so nothing an
observation says can open a turn or a call. Joining the parts gives the text a chat template would produce.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from glmgym.messages import Message, ToolCall, ToolSpec

DialectName = Literal["glm45", "glm47"]


class Mark(StrEnum):
    """The special tokens of the format; each is one id in a GLM tokenizer."""

    GMASK = "[gMASK]"
    SOP = "<sop>"
    SYSTEM = "<|system|>"
    USER = "<|user|>"
    ASSISTANT = "<|assistant|>"
    OBSERVATION = "<|observation|>"
    END_OF_TEXT = "<|endoftext|>"
    THINK = "<think>"
    END_THINK = "</think>"
    CALL = "<tool_call>"
    END_CALL = "</tool_call>"
    KEY = "<arg_key>"
    END_KEY = "</arg_key>"
    VALUE = "<arg_value>"
    END_VALUE = "</arg_value>"
    RESPONSE = "<tool_response>"
    END_RESPONSE = "</tool_response>"
    NO_THINK = "/nothink"


STOP_MARKS = (Mark.USER, Mark.OBSERVATION, Mark.END_OF_TEXT)  # an assistant turn ends with the next role marker

Part = Mark | str


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the GLM generations.

    ``gap`` stands wherever GLM-4.5 breaks the line; ``opens_thinking`` says that the generation prompt already holds
    the ``<think>`` (or, with thinking off, the ``</think>``) of the turn to come.
    """

    name: DialectName
    gap: str
    opens_thinking: bool


DIALECTS: dict[str, Dialect] = {
    "glm45": Dialect("glm45", gap="\n", opens_thinking=False),
    "glm47": Dialect("glm47", gap="", opens_thinking=True),
}


def opening_parts(
    dialect: Dialect, messages: Sequence[Message], tools: Iterable[Part], *, thinking: bool, keep_all: bool
) -> list[Part]:
    """A whole prompt: start of text, the parts of the tool block, the messages, the generation prompt.

    ``keep_all`` keeps the reasoning of every assistant message; otherwise that of messages before the last user
    message is dropped, as the reference template does.
    """
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    first_kept = 0 if keep_all else last_user
    return [
        Mark.GMASK,
        Mark.SOP,
        *tools,
        *message_parts(dialect, messages, thinking=thinking, first_kept=first_kept),
        *generation_parts(dialect, thinking=thinking),
    ]


def tool_parts(dialect: Dialect, tools: Sequence[ToolSpec]) -> list[Part]:
    """The tool block: a system turn of its own, one function schema per line. Short, for tiny models read it too."""
    if not tools:
        return []
    lines = "\n".join(to_json(tool.to_openai()["function"]) for tool in tools)
    return _filled(Mark.SYSTEM, dialect.gap, f"# Tools\n<tools>\n{lines}\n</tools>")


def message_parts(dialect: Dialect, messages: Sequence[Message], *, thinking: bool, first_kept: int = 0) -> list[Part]:
    """Messages as history. Assistant messages before index ``first_kept`` lose their reasoning."""
    parts: list[Part] = []
    previous = ""
    for i, message in enumerate(messages):
        match message.role:
            case "system":
                parts += _filled(Mark.SYSTEM, dialect.gap, message.content)
            case "user":
                parts += _filled(Mark.USER, dialect.gap, message.content)
                if not thinking and not dialect.opens_thinking:
                    parts.append(Mark.NO_THINK)
            case "tool":
                if previous != "tool":  # consecutive results share one marker
                    parts.append(Mark.OBSERVATION)
                gap = dialect.gap
                parts += _filled(gap, Mark.RESPONSE, gap, message.content, gap, Mark.END_RESPONSE)
            case "assistant":
                reasoning = message.reasoning if i >= first_kept else None
                parts += _assistant_parts(dialect, message, reasoning or None)
        previous = message.role
    return parts


def generation_parts(dialect: Dialect, *, thinking: bool) -> list[Part]:
    """What stands between the last message and the first token the policy samples."""
    if dialect.opens_thinking:
        return [Mark.ASSISTANT, Mark.THINK if thinking else Mark.END_THINK]
    return [Mark.ASSISTANT] if thinking else [Mark.ASSISTANT, *_filled(dialect.gap), Mark.THINK, Mark.END_THINK]


def turn_parts(dialect: Dialect, message: Message, *, thinking: bool) -> list[Part]:
    """What a policy samples after the generation prompt to say ``message``, its ending role marker included."""
    whole = _assistant_parts(dialect, message, (message.reasoning or "") if thinking else None)
    prompt = generation_parts(dialect, thinking=thinking)
    return [*whole[len(prompt) :], Mark.OBSERVATION if message.tool_calls else Mark.USER]


def to_json(value: Any) -> str:
    """JSON as GLM's templates write it: one line, no escapes for non-ASCII, keys in their given order."""
    return json.dumps(value, ensure_ascii=False)


def _assistant_parts(dialect: Dialect, message: Message, reasoning: str | None) -> list[Part]:
    """A whole assistant turn without an ending marker; ``reasoning=None`` is the reasoning-dropped form."""
    gap, content = dialect.gap, message.content.strip()
    if reasoning is not None:
        head: list[Part] = [gap, Mark.THINK, reasoning.strip(), Mark.END_THINK]
    else:
        head = [Mark.END_THINK] if dialect.opens_thinking else [gap, Mark.THINK, Mark.END_THINK]
    body: list[Part] = [gap, content] if content else []
    for call in message.tool_calls:
        body += _call_parts(gap, call)
    return _filled(Mark.ASSISTANT, *head, *body)


def _call_parts(gap: str, call: ToolCall) -> list[Part]:
    parts: list[Part] = [gap, Mark.CALL, call.name, gap]
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else to_json(value)
        parts += [Mark.KEY, key, Mark.END_KEY, gap, Mark.VALUE, text, Mark.END_VALUE, gap]
    return [*parts, Mark.END_CALL]


def _filled(*parts: Part) -> list[Part]:
    return [part for part in parts if part]

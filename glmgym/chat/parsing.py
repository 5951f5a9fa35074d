"""Reading an assistant message out of parts. Bad policy output is never an exception: it becomes a call with an error.

Marks are recognised by their id before this module runs, so text that merely looks like a tag stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glmgym.chat.wire import STOP_MARKS, Mark, Part
from glmgym.errors import did_you_mean
from glmgym.messages import Message, ToolCall, ToolSpec

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class _Malformed(Exception):
    """What is wrong with a call, as a sentence for the policy."""


def parse_message(parts: Sequence[Part], tools: Sequence[ToolSpec], *, in_reasoning: bool) -> Message:
    """The assistant message that ``parts`` spell, up to the first stop marker.

    Args:
        in_reasoning: the generation prompt left a ``<think>`` open.

    Returns:
        Reasoning and content stripped of outer whitespace; calls numbered ``call_0``, ``call_1``, ... in order.
    """
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    by_name = {tool.name: tool for tool in tools}
    rest = _until_stop(parts)
    i = 0
    while i < len(rest):
        part = rest[i]
        i += 1
        if part is Mark.THINK or part is Mark.END_THINK:
            in_reasoning = part is Mark.THINK
        elif in_reasoning:
            reasoning.append(part)
        elif part is Mark.CALL:
            end = _call_end(rest, i)
            closed = end < len(rest) and rest[end] is Mark.END_CALL
            calls.append(_read_call(f"call_{len(calls)}", rest[i:end], by_name, closed=closed))
            i = end + closed
        else:
            content.append(part)
    return Message(
        "assistant", "".join(content).strip(), reasoning="".join(reasoning).strip() or None, tool_calls=tuple(calls)
    )


def _until_stop(parts: Sequence[Part]) -> list[Part]:
    stop = next((i for i, part in enumerate(parts) if isinstance(part, Mark) and part in STOP_MARKS), len(parts))
    return list(parts[:stop])


def _call_end(parts: Sequence[Part], start: int) -> int:
    """Index of the mark that ends a call: its own closing tag, the next call, or the end of the turn."""
    ends = (i for i in range(start, len(parts)) if parts[i] is Mark.END_CALL or parts[i] is Mark.CALL)
    return next(ends, len(parts))


def _read_call(call_id: str, body: Sequence[Part], tools: Mapping[str, ToolSpec], *, closed: bool) -> ToolCall:
    name = body[0].strip() if body and not isinstance(body[0], Mark) else ""
    try:
        if not closed:
            raise _Malformed(f"the call of {name!r} is not closed: {Mark.END_CALL} is missing")
        if not name:
            raise _Malformed(f"a call must start with the tool's name right after {Mark.CALL}")
        if name not in tools:
            raise _Malformed(f"unknown tool {name!r}{did_you_mean(name, tools)}")
        return ToolCall(call_id, name, _read_arguments(name, body[1:], tools[name].parameters))
    except _Malformed as problem:
        return ToolCall(call_id, name, error=str(problem))


def _read_arguments(name: str, parts: Sequence[Part], schema: Mapping[str, Any]) -> dict[str, Any]:
    known: Mapping[str, Any] = schema.get("properties", {})
    arguments: dict[str, Any] = {}
    for key, text in _pairs(name, parts):
        if key in arguments:
            raise _Malformed(f"argument {key!r} of {name!r} is given twice")
        if key not in known and not schema.get("additionalProperties"):
            raise _Malformed(f"unknown argument {key!r} of {name!r}{did_you_mean(key, known)}")
        arguments[key] = _read_value(name, key, text, known.get(key, {}))
    missing = [key for key in schema.get("required", ()) if key not in arguments]
    if missing:
        raise _Malformed(f"{name!r} needs the argument {', '.join(map(repr, missing))}")
    return arguments


def _pairs(name: str, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Keys and raw values. Between the tags of a pair only whitespace may stand."""
    i = 0

    def expect(mark: Mark) -> None:
        nonlocal i
        while i < len(parts) and not isinstance(parts[i], Mark) and not parts[i].strip():
            i += 1
        if i == len(parts) or parts[i] is not mark:
            found = repr(_short(parts[i])) if i < len(parts) else "the end of the call"
            raise _Malformed(f"the call of {name!r} has {found} where {mark} was expected")
        i += 1

    def text_until(mark: Mark) -> str:
        nonlocal i
        end = next((j for j in range(i, len(parts)) if parts[j] is mark), None)
        if end is None:
            raise _Malformed(f"the call of {name!r} lacks a {mark}")
        text = "".join(parts[i:end])
        i = end + 1
        return text

    while any(isinstance(part, Mark) or part.strip() for part in parts[i:]):
        expect(Mark.KEY)
        key = text_until(Mark.END_KEY).strip()
        expect(Mark.VALUE)
        yield key, text_until(Mark.END_VALUE)


def _read_value(name: str, key: str, text: str, schema: Mapping[str, Any]) -> Any:
    """A string parameter takes the text verbatim, even if it looks like JSON; an untyped one may be either."""
    types = _types(schema)
    if "string" in types:
        return text
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # NaN, infinities and lone surrogates
    except (ValueError, RecursionError):
        if not types:
            return text
        value = _NOT_JSON
    if types and not any(_is_json_type(value, kind) for kind in types):
        wanted = " or ".join(sorted(types))
        raise _Malformed(f"argument {key!r} of {name!r} must be JSON of type {wanted}, got {_short(text)!r}")
    return value


_NOT_JSON = object()


def _is_json_type(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"  # Python counts bool as int; JSON does not
    return isinstance(value, _JSON_TYPES.get(kind, ()))


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types a property's schema admits; empty when it does not say."""
    declared = schema.get("type", ())
    found = {declared} if isinstance(declared, str) else set(declared)
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _types(alternative)
    return frozenset(found)


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."

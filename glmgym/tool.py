"""Tools: a typed async function and its docstring become a schema for the policy and a checked call for the env.

Owns the one rule about blame. What the policy asked for wrongly is a ``ToolResult`` with ``ok=False``, which it reads
and may correct; what broke on our side is a ``ToolFailure``, which ends the trajectory without a reward.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Union

from pydantic import TypeAdapter, ValidationError

from glmgym.errors import ConfigError, GlmgymError, ToolFailure, boundary, did_you_mean
from glmgym.messages import ToolSpec
from glmgym.sandbox import BoxFileError, CommandError, Sandbox

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_INJECTED = ("self", "box")  # given by the environment, never by the policy


class ToolError(GlmgymError):
    """Raised inside a tool: a sentence for the policy about what it asked for; the episode goes on."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy reads. ``ok`` is False when the call was wrong or could not be served."""

    text: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable tool. Arguments are read strictly: ``"3"`` is not an integer and ``True`` is not a number."""

    spec: ToolSpec
    function: Callable[..., Awaitable[Any]]
    readers: Mapping[str, TypeAdapter[Any]]  # by argument name
    injected: frozenset[str]  # which of "self" and "box" the function asks for

    def bind(self, owner: object) -> Tool:
        """The tool as a method of ``owner``; a tool that takes no ``self`` is returned as it is."""
        if "self" not in self.injected:
            return self
        return replace(self, function=partial(self.function, owner), injected=self.injected - {"self"})

    def problem(self, arguments: Any) -> str | None:
        """What is wrong with these arguments, as a sentence for the policy; ``None`` if nothing is."""
        if not isinstance(arguments, Mapping):
            return f"arguments of {self.spec.name} must be a JSON object, got {_shorten(arguments)}"
        unknown = [key for key in arguments if key not in self.readers]
        missing = [key for key in self.spec.parameters["required"] if key not in arguments]
        problems = [f"unknown argument {key!r}{did_you_mean(str(key), self.readers)}" for key in unknown]
        problems += [f"missing argument {key!r}" for key in missing]
        for key in (key for key in self.readers if key in arguments):
            try:
                self.readers[key].validate_python(arguments[key], strict=True)
            except ValidationError as error:
                problems += [_sentence(key, problem) for problem in error.errors(include_url=False)]
        return "; ".join(problems) or None

    async def __call__(self, arguments: Any, box: Sandbox | None = None) -> ToolResult:
        """Run the tool on what the policy wrote.

        A string result is shown as it is, a ``ToolResult`` is passed on, anything else is shown as JSON. A missing file
        or program in the box is the policy's to read about, like a ``ToolError``.

        Raises:
            SandboxDead: the box is gone.
            ToolFailure: anything else that escapes from the function.
        """
        problem = self.problem(arguments)
        if problem is not None:
            return ToolResult(problem, ok=False)
        injected = {"box": box} if "box" in self.injected else {}
        with boundary(ToolFailure, f"tool {self.spec.name}"):
            try:
                result = await self.function(**arguments, **injected)
            except (ToolError, BoxFileError, CommandError) as error:
                return ToolResult(str(error), ok=False)
            if isinstance(result, ToolResult):
                return result
            return ToolResult(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))


def tool(function: Callable[..., Awaitable[Any]]) -> Tool:
    """Make a tool of an async function: its name, its docstring up to ``Args:``, and one property per parameter.

    Parameter types are ``str``, ``int``, ``float``, ``bool``, ``list[...]``, ``dict``, ``Literal`` and their
    ``Optional`` forms; an argument with a default may be left out. Two names are special: ``box`` gets the episode's
    sandbox, ``self`` the environment when the tool is a method of a ``ToolEnv``.

    Raises:
        ConfigError: the function is not async or has no docstring, a parameter has an unsupported annotation or kind,
            or the docstring describes a parameter that does not exist.
    """
    name = function.__name__
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {name!r} must be an async function: write 'async def {name}(...)'")
    description, described = _read_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ConfigError(f"tool {name!r} needs a docstring: it is all the policy knows about the tool")
    parameters = inspect.signature(function).parameters
    visible = {key: value for key, value in parameters.items() if key not in _INJECTED}
    for key in described.keys() - visible.keys():
        raise ConfigError(f"tool {name!r} describes an argument {key!r} it does not have{did_you_mean(key, visible)}")

    properties: dict[str, Any] = {}
    required: list[str] = []
    hints = _resolve_hints(function, visible)
    for key, parameter in visible.items():
        where = f"tool {name!r}, parameter {key!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: *args, **kwargs and positional-only parameters have no place in a schema")
        properties[key] = _schema(_without_none(hints[key]), where)
        if key in described:
            properties[key]["description"] = described[key]
        if parameter.default is parameter.empty:
            required.append(key)
        elif parameter.default is not None:
            properties[key]["default"] = parameter.default

    spec = ToolSpec(name, description, {"type": "object", "properties": properties, "required": required})
    readers = {key: TypeAdapter(hint) for key, hint in hints.items()}
    return Tool(spec, function, readers, frozenset(parameters) & frozenset(_INJECTED))


def _resolve_hints(function: Callable[..., Any], visible: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    # Only the visible parameters: the type of ``box`` may be imported for type checking alone.
    for key, parameter in visible.items():
        if parameter.annotation is parameter.empty:
            raise ConfigError(f"tool {function.__name__!r}, parameter {key!r}: needs a type annotation")
    wanted = types.SimpleNamespace(__annotations__={key: value.annotation for key, value in visible.items()})
    try:
        return typing.get_type_hints(wanted, globalns=function.__globals__)
    except NameError as error:
        raise ConfigError(f"tool {function.__name__!r}: an annotation cannot be resolved: {error}") from error


def _without_none(annotation: Any) -> Any:
    """``X`` of ``X | None``; any other annotation unchanged."""
    members = [member for member in typing.get_args(annotation) if member is not type(None)]
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return members[0] if is_union and len(members) == 1 else annotation


def _schema(annotation: Any, where: str) -> dict[str, Any]:
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    origin, members = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is Literal:
        kinds = {type(member) for member in members}
        if len(kinds) == 1 and kinds <= _SCALARS.keys():
            return {"type": _SCALARS[kinds.pop()], "enum": list(members)}
    elif origin is list:
        return {"type": "array", **({"items": _schema(members[0], where)} if members else {})}
    elif origin is dict and (not members or members[0] is str):
        free = not members or members[1] is Any
        return {"type": "object", **({} if free else {"additionalProperties": _schema(members[1], where)})}
    shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    raise ConfigError(
        f"{where}: annotation {shown} is not supported; use str, int, float, bool, list[...], dict, Literal or Optional"
    )


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description before ``Args:`` and the description of each argument, in Google's style."""
    description, _, rest = text.partition("\nArgs:\n")
    described: dict[str, str] = {}
    current = ""
    for line in rest.split("\n"):
        entry = re.match(r" +(\w+)(?: \(.*?\))?: *(.*)", line) if _indent(line) <= 4 else None
        if line and not line[0].isspace():
            break  # the next section
        if entry:
            current = entry[1]
            described[current] = entry[2]
        elif current and line.strip():
            described[current] += " " + line.strip()
    return re.split(r"\n(?:Returns|Raises):\n", description)[0].strip(), described


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _sentence(name: str, problem: Any) -> str:
    path = ".".join([name, *(str(part) for part in problem["loc"])])
    return (
        f"argument {path!r} must be {problem['msg'].removeprefix('Input should be ')}, got {_shorten(problem['input'])}"
    )


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."

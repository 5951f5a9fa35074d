"""The base of every config model: frozen, strict about unknown keys, and clear about what was wrong.

Each component keeps its own settings next to itself; this file owns only how they are parsed and how mistakes are said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from glmgym.errors import ConfigError, did_you_mean

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Frozen settings; an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_settings(model: type[S], data: Mapping[str, Any], *, where: str) -> S:
    """Build ``model`` from plain data.

    Args:
        where: how the user calls the place the data came from (a file name or a table), for the message.

    Raises:
        ConfigError: one line per problem, each naming the key, the value and the nearest known key or the rule.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        lines = [_describe(model, problem) for problem in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None


def _describe(model: type[BaseModel], problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}{did_you_mean(path[-1], _known_keys(model, path[:-1]))}"
    if problem["type"] == "missing":
        return f"missing key {key!r}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key} = {problem['input']!r}: {message}" if key else message


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    """The keys that may stand at ``path``; those of every branch where a union offers several models."""
    models = [model]
    for part in path:
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        if found:  # else a list index, a mapping's key or the name of a union's branch
            models = [t for annotation in found for t in (annotation, *get_args(annotation)) if _is_model(t)]
    return [name for m in models for name in m.model_fields]


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)

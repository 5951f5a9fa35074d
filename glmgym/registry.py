"""Names to things: environments registered by users, and backends found lazily through entry points.

Ids carry a version (``my_env-v0``). A lookup without one takes the highest; an unknown name says what was near.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from glmgym.env import Env, Oracle, TaskSet
from glmgym.errors import ConfigError, UnknownName
from glmgym.sandbox import BoxSpec

_ID = re.compile(r"(?P<name>[A-Za-z][\w./-]*?)-v(?P<version>\d+)")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """A registered environment: how to make one episode, its tasks, the box it needs, and a policy that solves it."""

    id: str
    make: Callable[[], Env]
    tasks: TaskSet
    box: BoxSpec | None = None
    oracle: Oracle | None = None
    max_turns: int = 16
    description: str = ""


_environments: dict[str, EnvSpec] = {}
_loaded: set[str] = set()


def register(
    id: str,
    make: Callable[[], Env],
    *,
    tasks: TaskSet,
    box: BoxSpec | None = None,
    oracle: Oracle | None = None,
    max_turns: int = 16,
    description: str = "",
) -> EnvSpec:
    """Make an environment known under ``id``, for example ``"my_env-v0"``.

    Args:
        make: called once per episode, with no arguments.
        tasks: the task set; see ``glmgym.procedural`` for the common case.
        box: the sandbox each episode gets, or ``None`` for tools that need none.
        oracle: gives the assistant turns that solve a task; ``glmgym check`` plays it.

    Raises:
        ConfigError: the id has no version or is taken.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"environment id {id!r} needs a name and a version, such as 'my_env-v0'")
    if id in _environments:
        raise ConfigError(f"environment {id!r} is registered twice; give the new one another version")
    spec = EnvSpec(id, make, tasks, box, oracle, max_turns, description or (make.__doc__ or "").strip().split("\n")[0])
    _environments[id] = spec
    return spec


def environment(id: str) -> EnvSpec:
    """The registered environment; ``name`` alone means its highest version.

    Raises:
        UnknownName: with the nearest known id.
    """
    known = environments()
    if id in known:
        return known[id]
    versions = [spec for spec in known.values() if _split(spec.id)[0] == id]
    if not versions:
        raise UnknownName("environment", id, known)
    return max(versions, key=lambda spec: _split(spec.id)[1])


def environments() -> dict[str, EnvSpec]:
    """Every registered environment by id, after loading installed packages' entry points."""
    for entry in entry_points(group="glmgym.environments"):
        if entry.name not in _loaded:
            _loaded.add(entry.name)
            entry.load()
    return dict(sorted(_environments.items()))


def load_component(group: str, name: str) -> Any:
    """The object an installed package offers as ``name`` in the entry-point group ``glmgym.{group}``.

    Raises:
        UnknownName: nothing of that name is installed.
        ConfigError: it is installed but cannot be imported; the message says what is missing.
    """
    entries = {entry.name: entry for entry in entry_points(group=f"glmgym.{group}")}
    if name not in entries:
        raise UnknownName(group.rstrip("s"), name, entries)
    try:
        return entries[name].load()
    except ImportError as error:
        raise ConfigError(f"{group} {name!r} cannot be imported: {error}; is its extra installed?") from error


def _split(id: str) -> tuple[str, int]:
    match = _ID.fullmatch(id)
    assert match is not None
    return match["name"], int(match["version"])

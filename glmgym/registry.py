"""Names to things: environments registered by users, and backends found lazily through entry points.

Ids carry a version (``my_env-v0``). A lookup without one takes the highest; an unknown name says what was near. A
user's own environment needs no installation: its file or directory is loaded by path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from glmgym.env import Env, Oracle, Task, TaskSet
from glmgym.errors import BoundaryFailure, ConfigError, EnvFailure, UnknownName, boundary
from glmgym.sandbox import BoxSpec

logger = logging.getLogger(__name__)

_ID = re.compile(r"(?P<name>[A-Za-z][\w./-]*?)-v(?P<version>\d+)")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """A registered environment: how to make one episode, its tasks, the box it needs, and a policy that solves it.

    ``box`` may differ from task to task; see ``box_of``.
    """

    id: str
    make: Callable[[], Env]
    tasks: TaskSet
    box: BoxSpec | Callable[[Task], BoxSpec] | None = None
    oracle: Oracle | None = None
    max_turns: int = 16
    description: str = ""

    def box_of(self, task: Task) -> BoxSpec | None:
        """The box an episode of ``task`` gets; ``None`` if the environment needs none."""
        return self.box(task) if callable(self.box) else self.box

    @property
    def suite(self) -> str:
        """``"suite"`` of the id ``"suite/name-v0"``; empty for an environment by itself."""
        return self.id.rpartition("/")[0]


_environments: dict[str, EnvSpec] = {}
_loaded: set[str] = set()  # entry points by name
_files: dict[Path, EnvSpec] = {}


def register(
    id: str,
    make: Callable[[], Env],
    *,
    tasks: TaskSet,
    box: BoxSpec | Callable[[Task], BoxSpec] | None = None,
    oracle: Oracle | None = None,
    max_turns: int = 16,
    description: str = "",
) -> EnvSpec:
    """Make an environment known under ``id``, for example ``"my_env-v0"``.

    Args:
        make: called once per episode, with no arguments.
        tasks: the task set; see ``glmgym.procedural`` for the common case.
        box: the sandbox each episode gets, a function from the task to it, or ``None`` for tools that need none.
        oracle: gives the assistant turns that solve a task; ``glmgym check`` plays it.

    Raises:
        ConfigError: the id has no version or is taken, or ``max_turns`` is below 1.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"environment id {id!r} needs a name and a version, such as 'my_env-v0'")
    if id in _environments:
        raise ConfigError(f"environment {id!r} is registered twice; give the new one another version")
    if max_turns < 1:
        raise ConfigError(f"environment {id!r}: max_turns={max_turns}, but an episode has at least 1 turn")
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
    """Every registered environment by id, after loading installed packages' entry points.

    A package that cannot be imported is logged and skipped: it must not hide the others.
    """
    for entry in entry_points(group="glmgym.environments"):
        if entry.name not in _loaded:
            _loaded.add(entry.name)
            try:
                with boundary(EnvFailure, f"import {entry.value}"):
                    entry.load()
            except (BoundaryFailure, ConfigError) as error:
                logger.warning("environments of %s are missing: %s", entry.name, error)
    return dict(sorted(_environments.items()))


def find_environment(target: str) -> EnvSpec:
    """What a user means by an id (``"my_env-v0"``, ``"my_env"``) or by a path (``"my_env/"``, ``"my_env/env.py"``).

    A directory without an ``env.py`` is one of task directories.

    Raises:
        ConfigError: nothing of that name is registered, or what is at the path cannot be loaded.
    """
    if not (target.endswith((".py", "/")) or Path(target).exists()):
        return environment(target)
    if Path(target).is_dir() and not (Path(target) / "env.py").is_file():
        spec: EnvSpec = load_component("task_directories", "harbor")(Path(target))
        return spec
    return load_file(target)


def load_file(path: str | Path) -> EnvSpec:
    """Import a user's environment file, or ``env.py`` of a directory, and return the environment it registers.

    Modules beside the file can be imported by it. Loading a file twice gives the same environment.

    Raises:
        ConfigError: there is no such file, it raises while it is imported (with the line), or it registers no
            environment or several.
    """
    file = Path(path).resolve()
    if file.is_dir():
        file = file / "env.py"
    if not file.is_file():
        raise ConfigError(f"no environment at {path}: there is no file {file}")
    if file not in _files:
        known = environments()  # all of them: what the file imports may register those of its package
        try:
            _import_file(file)
            new = [spec for id, spec in _environments.items() if id not in known]
            if len(new) != 1:
                many = f"{len(new)} environments ({', '.join(spec.id for spec in new)})" if new else "no environment"
                raise ConfigError(f"{file} registers {many}; it must call glmgym.register('name-v0', ...) once")
        except ConfigError:
            _environments.clear()
            _environments.update(known)
            raise
        _files[file] = new[0]
    return _files[file]


def load_component(group: str, name: str) -> Any:
    """The object an installed package offers as ``name`` in the entry-point group ``glmgym.{group}``.

    Raises:
        UnknownName: nothing of that name is installed.
        ConfigError: it is installed but cannot be imported; the message says what is missing.
    """
    entries = {entry.name: entry for entry in entry_points(group=f"glmgym.{group}")}
    if name not in entries:
        raise UnknownName(f"entry of glmgym.{group}", name, entries)
    try:
        return entries[name].load()
    except ImportError as error:
        raise ConfigError(f"{group} {name!r} cannot be imported: {error}; is its extra installed?") from error


def component_names(group: str) -> list[str]:
    """What ``load_component`` knows in a group, by name."""
    return sorted(entry_points(group=f"glmgym.{group}").names)


def _split(id: str) -> tuple[str, int]:
    match = _ID.fullmatch(id)
    assert match is not None
    return match["name"], int(match["version"])


def _import_file(file: Path) -> None:
    name = f"glmgym_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        with boundary(EnvFailure, f"load {file}"):
            module_spec.loader.exec_module(module)
    except (BoundaryFailure, ConfigError) as error:
        del sys.modules[name]
        cause = error.__cause__ or error
        lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(file)]
        said = f"load {file}: {error}" if isinstance(error, ConfigError) else str(error)
        raise ConfigError(said + (f" (line {lines[-1]})" if lines else "")) from cause

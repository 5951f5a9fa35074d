"""SWE tasks on disk: one directory per task, an index over them, and the task set that reads it.

``ROOT/index.json`` lists the tasks; ``ROOT/tasks/ID/`` holds ``task.json`` (a ``SweRecord``), ``repo.tar.xz`` (what the
policy gets), ``tests.tar.xz`` (the hidden tests: the trusted copy) and ``gold.patch``; ``ROOT/deps/NAME.tar.xz`` are
packages that several tasks import. Everything is named by a digest of its content and checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from glmgym.env import Split, Task
from glmgym.errors import ConfigError, EnvFailure
from glmgym.settings import Settings, parse_settings
from glmgym_envs.swe.archive import Packed, unpack

_SPLITS: tuple[Split, ...] = ("train", "heldout")


class SweRecord(Settings):
    """``task.json``, and ``Task.data``. Paths are relative to the repository."""

    id: str
    kind: Literal["release", "mutation"]
    package: str
    version: str  # of the sources the policy starts from
    licence: str  # SPDX; the repository holds its text
    sources: dict[str, str]  # sha256 by file name of the archives it was made from
    instruction: str
    split: Split
    roots: list[str] = Field(default_factory=lambda: ["."])  # directories to import the package from
    tests: list[str]  # what the test runner is given: files and directories
    deps: list[str] = Field(default_factory=list)  # names below deps/
    f2p: list[str] = Field(min_length=1)  # tests that fail before and pass after the repair
    p2p: list[str] = Field(min_length=1)  # tests that pass before and after
    wall_s: float = Field(default=600.0, gt=0)  # the policy's time
    score_s: float = Field(default=300.0, gt=0)  # grading's time
    sha256: dict[str, str]  # of the tar in each archive by its path below ROOT, and of gold.patch


class IndexEntry(Settings):
    """One line of ``index.json``."""

    id: str
    split: Split
    sha256: str  # of task.json


class Index(Settings):
    """``index.json``. ``name`` is the environment it belongs to."""

    name: str
    tasks: list[IndexEntry]


class SweTaskSet:
    """The tasks below ``root``, in the order of the index. Nothing is read before the first question."""

    def __init__(self, root: Path, *, how_to_build: str = "") -> None:
        self.root = root
        self.how_to_build = how_to_build

    def size(self, split: Split) -> int:
        """0 while the set is not built."""
        return len(self._ids[split])

    def task(self, split: Split, index: int) -> Task:
        """Task ``index`` of a split.

        Raises:
            ConfigError: the set is not built yet; the message says how to build it.
            IndexError: ``index`` is not in ``range(size(split))``.
        """
        ids = self._ids[split]
        if self._index is None:
            hint = f"; build them: {self.how_to_build}" if self.how_to_build else ""
            raise ConfigError(f"there are no SWE tasks at {self.root}{hint}")
        if not 0 <= index < len(ids):
            raise IndexError(f"task {index} of {self._index.name}/{split}: there are {len(ids)}")
        record = self.record(ids[index])
        return Task(
            id=record.id,
            instruction=record.instruction,
            data=record.model_dump(),
            family=f"{record.kind}/{record.package}",
            domain="swe",
            wall_s=record.wall_s,
            score_s=record.score_s,
        )

    def record(self, id: str) -> SweRecord:
        """Raises ConfigError: there is no such task, or its ``task.json`` is not the one of the index."""
        path = self.root / "tasks" / id / "task.json"
        content = _read(path)
        if hashlib.sha256(content).hexdigest() != self._digests.get(id):
            raise ConfigError(f"{path} is not what {self.root / 'index.json'} names; build the set again")
        return parse_settings(SweRecord, json.loads(content), where=str(path))

    def tar(self, record: SweRecord, name: str) -> bytes:
        """The uncompressed ``repo.tar`` or ``tests.tar`` of a task (``name`` without the ending).

        Raises:
            EnvFailure: it is missing or damaged.
        """
        return self._archive(record, f"tasks/{record.id}/{name}.tar.xz")

    def dep_tars(self, record: SweRecord) -> list[bytes]:
        """The uncompressed tars of the packages a task imports. Raises EnvFailure: one is missing or damaged."""
        return [self._archive(record, f"deps/{name}.tar.xz") for name in record.deps]

    def gold(self, id: str) -> str:
        """The patch that solves a task. Raises ConfigError: it is missing."""
        return _read(self.root / "tasks" / id / "gold.patch").decode()

    def _archive(self, record: SweRecord, path: str) -> bytes:
        try:
            return unpack((self.root / path).read_bytes(), record.sha256[path])
        except (OSError, ValueError, KeyError) as error:
            raise EnvFailure(f"task {record.id}: {self.root / path}: {error}") from error

    @cached_property
    def _index(self) -> Index | None:
        path = self.root / "index.json"
        return parse_settings(Index, json.loads(path.read_bytes()), where=str(path)) if path.is_file() else None

    @cached_property
    def _entries(self) -> list[IndexEntry]:
        return self._index.tasks if self._index is not None else []

    @cached_property
    def _ids(self) -> dict[Split, list[str]]:
        return {split: [entry.id for entry in self._entries if entry.split == split] for split in _SPLITS}

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {entry.id: entry.sha256 for entry in self._entries}


def save_task(root: Path, record: SweRecord, *, repo: Packed, tests: Packed, gold: str) -> SweRecord:
    """Write one task below ``root``; whatever appears under its name is whole. Returns it with its digests."""
    place = f"tasks/{record.id}"
    digests = {
        f"{place}/repo.tar.xz": repo.sha256,
        f"{place}/tests.tar.xz": tests.sha256,
        f"{place}/gold.patch": hashlib.sha256(gold.encode()).hexdigest(),
    }
    record = record.model_copy(update={"sha256": {**record.sha256, **digests}})
    write(root / place / "repo.tar.xz", repo.content)
    write(root / place / "tests.tar.xz", tests.content)
    write(root / place / "gold.patch", gold.encode())
    write(root / place / "task.json", to_json(record))  # last: a task with a record is whole
    return record


def save_index(root: Path, name: str) -> Index:
    """List every whole task below ``root``."""
    entries = []
    for path in sorted(root.glob("tasks/*/task.json")):
        content = path.read_bytes()
        record = parse_settings(SweRecord, json.loads(content), where=str(path))
        entries.append(IndexEntry(id=record.id, split=record.split, sha256=hashlib.sha256(content).hexdigest()))
    index = Index(name=name, tasks=entries)
    write(root / "index.json", to_json(index))
    return index


def default_root() -> Path:
    """``glmgym/swe`` below $XDG_CACHE_HOME or ~/.cache; for root below /var/cache, as for images."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "glmgym/swe"
    return (Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache") / "glmgym/swe"


def to_json(settings: Settings) -> bytes:
    """The same bytes for the same content."""
    return (json.dumps(settings.model_dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write(path: Path, content: bytes) -> None:
    """Write a file whole: it appears under its name only when all of it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; build the set again") from error

"""Task directories as an environment: what ``glmgym eval``, ``check`` and training take for a path."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import Field

from glmgym.env import Split, Task
from glmgym.errors import ConfigError, did_you_mean
from glmgym.registry import EnvSpec
from glmgym.sandbox import BoxSpec
from glmgym.settings import Settings, parse_settings
from glmgym_envs.harbor.box import boxes_of
from glmgym_envs.harbor.env import HarborEnv
from glmgym_envs.harbor.oracle import oracle_of
from glmgym_envs.harbor.schema import Author
from glmgym_envs.harbor.task import HarborTask, checksum_of, load_task

MAX_TURNS = 100
BESIDE_S = 60.0  # of grading, beyond the tests' own time: boxes to open, files to carry


class _Entry(Settings):
    name: str
    digest: str = ""


class _Facts(Settings):
    name: str = ""
    description: str = ""
    keywords: tuple[str, ...] = ()
    authors: tuple[Author, ...] = ()


class _Dataset(Settings):
    dataset: _Facts = Field(default_factory=_Facts)
    tasks: tuple[_Entry, ...] = Field(default=(), min_length=1)


class HarborTasks:
    """Loaded tasks by split. Held out are those named, or all; trained on are the others, or else all."""

    def __init__(self, tasks: Sequence[HarborTask], heldout: Sequence[str] | None) -> None:
        chosen = {task.id for task in tasks} if heldout is None else set(heldout)
        for name in chosen - {task.id for task in tasks}:
            raise ConfigError(f"held-out task {name!r} is not there{did_you_mean(name, [task.id for task in tasks])}")
        held = [as_task(task) for task in tasks if task.id in chosen]
        rest = [as_task(task) for task in tasks if task.id not in chosen]
        self._splits: dict[Split, list[Task]] = {"train": rest if heldout is not None else held, "heldout": held}

    def size(self, split: Split) -> int:
        return len(self._splits[split])

    def task(self, split: Split, index: int) -> Task:
        if not 0 <= index < len(self._splits[split]):
            raise IndexError(f"task {index} of {split}: there are {len(self._splits[split])}")
        return self._splits[split][index]


def task_set(directories: Iterable[Path], *, heldout: Sequence[str] | None = None) -> HarborTasks:
    """The tasks of these directories.

    Args:
        heldout: ids of the tasks that are never trained on; ``None`` evaluates and trains on the same tasks.

    Raises:
        ConfigError: see ``load_task``; two directories of one name, or a held-out name that is not there.
    """
    return HarborTasks(_load_all(directories), heldout)


def spec_of(path: Path, id: str = "", *, heldout: Sequence[str] | None = None, description: str = "") -> EnvSpec:
    """The environment of one task directory, or of a directory of them; images that are missing are built.

    Args:
        id: name and version; of the directory's name if empty.

    Raises:
        ConfigError: no task is there, one cannot be loaded, ``dataset.toml`` does not fit, or see ``boxes_of``.
    """
    tasks = _load_all(task_directories(path))
    boxes = {task.id: boxes_of(task) for task in tasks}

    def box(task: Task) -> BoxSpec:
        return boxes[task.id].spec

    return EnvSpec(
        id or f"{_plain(path.resolve().name)}-v0",
        partial(HarborEnv, boxes),
        HarborTasks(tasks, heldout),
        box=box,
        oracle=oracle_of(boxes),
        max_turns=MAX_TURNS,
        description=description or f"{len(tasks)} task directories of {path}",
    )


def task_directories(path: Path) -> list[Path]:
    """The task directory at ``path``, those its ``dataset.toml`` names, or all that lie in it.

    Raises:
        ConfigError: there is none, or one that the dataset names is missing or has other content.
    """
    if (path / "task.toml").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("*/task.toml"))
    if not found:
        raise ConfigError(f"{path} holds no task: there is neither {path / 'task.toml'} nor a directory with one")
    manifest = path / "dataset.toml"
    return _named(manifest, found) if manifest.is_file() else found


def as_task(task: HarborTask) -> Task:
    """The record that a run carries. Its data is the checksum, which names the content."""
    agent = [stage.agent.timeout_sec for stage in task.stages]
    between = [stage.verifier.timeout_sec for stage in task.stages[:-1] if not stage.separate]
    wall_s = sum(filter(None, agent)) + sum(between) if all(agent) else None
    after = [stage.verifier for stage in task.stages if stage.separate or stage is task.stages[-1]]
    kept = sum(each.timeout_sec for verifier in after for each in verifier.collect)
    metadata = task.config.metadata
    return Task(
        task.id,
        task.stages[0].instruction,
        {"checksum": task.checksum},
        family=str(metadata.get("category", "")),
        wall_s=wall_s,
        score_s=sum(verifier.timeout_sec for verifier in after) + kept + BESIDE_S,
    )


def _load_all(directories: Iterable[Path]) -> list[HarborTask]:
    tasks = [load_task(directory) for directory in directories]
    by_id: dict[str, HarborTask] = {}
    for task in tasks:
        if (other := by_id.setdefault(task.id, task)) is not task:
            raise ConfigError(f"two tasks are called {task.id!r}: {other.directory} and {task.directory}")
    return tasks


def _named(manifest: Path, found: Sequence[Path]) -> list[Path]:
    try:
        dataset = parse_settings(_Dataset, tomllib.loads(manifest.read_text("utf-8")), where=str(manifest))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{manifest}: {error}") from error
    by_name = _names(found)
    chosen: list[Path] = []
    for entry in dataset.tasks:
        if entry.name not in by_name:
            raise ConfigError(
                f"{manifest} [[tasks]] name = {entry.name!r} is not there{did_you_mean(entry.name, by_name)}"
            )
        directory = by_name[entry.name]
        if entry.digest and entry.digest != (digest := checksum_of(directory)):
            raise ConfigError(f"{manifest} [[tasks]] digest of {entry.name!r}: {directory} has {digest}")
        chosen.append(directory)
    return chosen


def _names(directories: Sequence[Path]) -> Mapping[str, Path]:
    """Directories by their own name and by ``[task] name``."""
    names = {directory.name: directory for directory in directories}
    return {load_task(directory).config.task.name: directory for directory in directories} | names


def _plain(name: str) -> str:
    plain = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")
    return plain if re.match(r"[A-Za-z]", plain) else f"tasks-{plain}"

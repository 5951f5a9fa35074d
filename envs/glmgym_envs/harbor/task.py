"""A Harbor task directory, read once and frozen. Owns what belongs to a task and how its content is named.

Files are only listed and hashed here: their bytes may be anything, their names anything a file system holds.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from glmgym.errors import ConfigError
from glmgym.settings import parse_settings
from glmgym_envs.harbor.schema import Agent, Artifact, Environment, Healthcheck, Own, Phase, TaskConfig, Verifier

S = TypeVar("S", Agent, Verifier)

TEST = "test.sh"
RULE = "rule.json"  # of a task that is graded by its log
VERIFIER_LOGS = b"/logs/verifier"
_UNTAKEN = {  # by file, and why
    "environment/docker-compose.yaml": "services beside the task's own box cannot be given; write a Dockerfile",
    "environment/docker-compose.yml": "services beside the task's own box cannot be given; write a Dockerfile",
    "environment/singularity-compose.yaml": "services beside the task's own box cannot be given; write a Dockerfile",
    "trajectory.json": "a task that starts in the middle of a trajectory is not taken",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What is asked, and how that is graded: a step of a task, or all of a task without steps.

    ``tests`` are directories, put over each other in order.
    """

    name: str  # "" for a task without steps
    instruction: str
    tests: tuple[Path, ...]
    solution: Path | None
    workdir: Path | None  # put into the working directory as the step begins
    agent: Agent
    verifier: Verifier
    artifacts: tuple[Artifact, ...]
    healthcheck: Healthcheck | None
    min_reward: dict[str, float]

    @property
    def separate(self) -> bool:
        """Whether it is graded in a box of its own, on artifacts alone."""
        mode = self.verifier.environment_mode
        return mode == "separate" or (mode is None and self.verifier.environment is not None)


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task directory. ``checksum`` names the content of all its files."""

    directory: Path
    config: TaskConfig
    own: Own
    checksum: str
    stages: tuple[Stage, ...]

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def environment(self) -> Path:
        return self.directory / "environment"

    @property
    def dockerfile(self) -> Path | None:
        """What the image is built from; ``None`` for a prebuilt one."""
        file = self.environment / "Dockerfile"
        return file if not self.config.environment.docker_image and file.is_file() else None

    @property
    def in_place(self) -> bool:
        """Whether it is graded in the policy's own box while its processes live."""
        return self.own.needs_services or self.own.tests_in_agent_shell


def load_task(directory: Path) -> HarborTask:
    """Read and check a task directory.

    Raises:
        ConfigError: naming the file, the key and what to do.
    """
    directory = directory.resolve()
    config = _read_config(directory / "task.toml")
    for name, why in _UNTAKEN.items():
        if (directory / name).exists():
            raise ConfigError(f"{directory / name}: {why}")
    own = parse_settings(Own, config.metadata.get("glmgym", {}), where=f"{directory / 'task.toml'} [metadata.glmgym]")
    stages = tuple(_stages(directory, config))
    task = HarborTask(directory, config, own, checksum_of(directory), stages)
    _check_whole(task)
    return task


def checksum_of(directory: Path) -> str:
    """``"sha256:..."`` over the path, kind, right to execute and content of everything below ``directory``."""
    whole = hashlib.sha256()
    for path, mode in sorted(_walk(directory)):
        if stat.S_ISLNK(mode):
            kind, content = b"l", os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
            kind, content = b"x" if mode & 0o100 else b"f", path.read_bytes()
        else:
            raise ConfigError(f"{path}: a task directory holds files, directories and symlinks only")
        name = os.fsencode(path.relative_to(directory))
        whole.update(kind + b"\0" + name + b"\0" + hashlib.sha256(content).digest())
    return f"sha256:{whole.hexdigest()}"


def _walk(directory: Path) -> Iterator[tuple[Path, int]]:
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path), entry.stat(follow_symlinks=False).st_mode


def _read_config(file: Path) -> TaskConfig:
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file.parent} is no task: it has no task.toml") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    return parse_settings(TaskConfig, data, where=str(file))


def _stages(directory: Path, config: TaskConfig) -> Iterator[Stage]:
    solution = _directory(directory / "solution")
    if not config.steps:
        yield Stage(
            "",
            _instruction(directory),
            _tests(directory / "tests"),
            solution,
            None,
            config.agent,
            config.verifier,
            config.artifacts,
            None,
            {},
        )
        return
    for step in config.steps:
        place = directory / "steps" / step.name
        if not place.is_dir():
            raise ConfigError(f"{directory / 'task.toml'}: [[steps]] name = {step.name!r}, but there is no {place}")
        if (place / "trajectory.json").exists():
            raise ConfigError(f"{place / 'trajectory.json'}: {_UNTAKEN['trajectory.json']}")
        least = step.min_reward if isinstance(step.min_reward, dict) else {"reward": step.min_reward}
        yield Stage(
            step.name,
            _instruction(place),
            _tests(directory / "tests", place / "tests"),
            _directory(place / "solution"),
            _directory(place / "workdir"),
            _over(config.agent, step.agent),
            _over(config.verifier, step.verifier),
            (*config.artifacts, *step.artifacts),
            step.healthcheck,
            {key: value for key, value in least.items() if value is not None},
        )


def _over(task: S, step: S) -> S:
    """The step's keys before the task's."""
    return task.model_copy(update={key: getattr(step, key) for key in step.model_fields_set})


def _instruction(place: Path) -> str:
    file = place / "instruction.md"
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing: the policy needs an instruction") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error}") from error
    if not text.strip():
        raise ConfigError(f"{file} is empty: the policy needs an instruction")
    return text


def _tests(*places: Path) -> tuple[Path, ...]:
    found = tuple(place for place in places if place.is_dir())
    if not any((place / TEST).is_file() for place in found):
        raise ConfigError(f"{places[-1] / TEST} is missing: without tests nothing can be graded")
    return found


def _directory(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _mentions(directory: Path, word: bytes) -> bool:
    return any(stat.S_ISREG(mode) and word in path.read_bytes() for path, mode in _walk(directory))


def _check_whole(task: HarborTask) -> None:
    """What no single key can know."""
    file = task.directory / "task.toml"
    config, own = task.config, task.own
    for key, path in (("files", own.files), ("setup", own.setup)):
        if path is not None and not (task.environment / path).exists():
            raise ConfigError(f"{file} [metadata.glmgym] {key} = {path!r}: there is no {task.environment / path}")
    if not (config.environment.docker_image or task.dockerfile):
        raise ConfigError(
            f"{file} [environment] docker_image is missing, and there is no {task.environment / 'Dockerfile'}"
        )
    phases: dict[str, Environment | Phase] = {
        "environment": config.environment,
        "agent": config.agent,
        "verifier": config.verifier,
    }
    if config.verifier.environment is not None:
        phases["verifier.environment"] = config.verifier.environment
    for step in config.steps:
        phases |= {f"steps.{step.name}.agent": step.agent, f"steps.{step.name}.verifier": step.verifier}
    for where, phase in phases.items():
        if phase.network_mode == "public" and not own.offline:
            raise ConfigError(
                f"{file} [{where}] network_mode = 'public': a box reaches only what is named; write network_mode = "
                "'allowlist' with allowed_hosts, or [metadata.glmgym] offline = true if the task works without"
            )
    if task.in_place and not any(_mentions(place, VERIFIER_LOGS) for stage in task.stages for place in stage.tests):
        raise ConfigError(f"{task.directory}: graded in place, but no test writes to {VERIFIER_LOGS.decode()}")
    if own.log is not None and task.in_place:
        raise ConfigError(
            f"{file} [metadata.glmgym.log]: a task graded in place, in the policy's box, writes its reward itself"
        )
    if own.log is not None and not all(any((place / RULE).is_file() for place in each.tests) for each in task.stages):
        raise ConfigError(f"{file} [metadata.glmgym.log]: there is no tests/{RULE} that says how the log is read")
    agent_user = config.agent.user or "root"
    for stage in task.stages:
        where = f"{file} {stage.name}".rstrip()
        for wanted in (stage.agent.user, *(each.user for each in stage.verifier.collect)):
            if (wanted or agent_user) != agent_user:
                raise ConfigError(f"{where} user = {wanted!r}: the policy's box has one user, here {agent_user!r}")
        if (stage.verifier.user or agent_user) != agent_user and not stage.separate:
            raise ConfigError(
                f"{where} [verifier] user = {stage.verifier.user!r}: a box has one user, here {agent_user!r}; write "
                "environment_mode = 'separate' to grade as another"
            )
        if stage.separate and task.in_place:
            raise ConfigError(
                f"{where} [verifier] environment_mode = 'separate': it needs the services of the policy's box"
            )
        if stage.separate and stage.min_reward:
            raise ConfigError(f"{where} min_reward: a step graded in a separate box is graded after the last step")

"""The images of tasks: a Dockerfile built by the Docker engine and taken into the image store, for every backend.

Owns one directory beside the store, ``task_images/``: what a built or pulled image says of itself (``WORKDIR``,
``ENV``, ``USER``), which a root filesystem's tar does not hold. An image is named by the content it was built from, so
a task that did not change is built once. All blocks, for minutes: call it off the event loop.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glmgym import scratch
from glmgym.errors import ConfigError, SandboxFailure
from glmgym.registry import load_component
from glmgym_envs.harbor.schema import Environment
from glmgym_envs.harbor.task import checksum_of

logger = logging.getLogger(__name__)

LAST_LINES = 15  # of a build that failed
SAVE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TaskImage:
    """``name`` for a ``BoxSpec``, and what the image's configuration says."""

    name: str
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


def image_of(environment: Environment, context: Path, *, where: str) -> TaskImage:
    """The image an ``[environment]`` asks for, brought into the store if it is not there.

    Args:
        context: the directory whose ``Dockerfile`` is built when no ``docker_image`` is named.
        where: how messages call the table.

    Raises:
        ConfigError: neither store nor engine has the image, there is no engine, or the build failed (with its last
            lines).
    """
    store = load_component("images", "store")()
    if environment.docker_image:
        return _prebuilt(environment.docker_image, store, where)
    name = f"task-{checksum_of(context).removeprefix('sha256:')[:24]}"
    if (known := _known(name, store)) is not None:
        return known
    logger.info("%s: building %s", name, context / "Dockerfile")
    _build(context, name, environment.build_timeout_sec)
    return _take(name, name, store, where)


def _prebuilt(reference: str, store: Any, where: str) -> TaskImage:
    try:
        return TaskImage(store.find(reference).name)
    except SandboxFailure as missing:  # perhaps the engine has it
        problem = str(missing)
    found = _docker("image", "inspect", "--format", "{{.Id}}", reference)
    if found.returncode != 0:
        raise ConfigError(f"{where} docker_image = {reference!r}: {problem}; nor has the Docker engine: {_tail(found)}")
    name = f"task-{found.stdout.decode().strip().removeprefix('sha256:')[:24]}"
    return _known(name, store) or _take(reference, name, store, where)


def _known(name: str, store: Any) -> TaskImage | None:
    try:
        facts = json.loads(_facts_file(name, store).read_text())
        store.find(name)
    except (FileNotFoundError, SandboxFailure):
        return None
    return TaskImage(**facts)


def _build(context: Path, tag: str, timeout_s: float) -> None:
    built = _docker("build", "--force-rm", "--tag", tag, str(context), timeout_s=timeout_s)
    if built.returncode != 0:
        raise ConfigError(f"{context / 'Dockerfile'} does not build; the last lines:\n{_tail(built)}")


def _take(reference: str, name: str, store: Any, where: str) -> TaskImage:
    """Import an image of the engine as ``name``, and keep its configuration."""
    inspected = _docker("image", "inspect", "--format", "{{json .Config}}", reference)
    if inspected.returncode != 0:
        raise ConfigError(f"{where}: the Docker engine lost image {reference}: {_tail(inspected)}")
    config = json.loads(inspected.stdout)
    env = dict(pair.split("=", 1) for pair in config.get("Env") or [] if "=" in pair)
    user = (config.get("User") or "").partition(":")[0]
    image = TaskImage(name, config.get("WorkingDir") or "", env, user)
    with scratch.temporary() as directory:
        tar = directory / "image.tar"
        saved = _docker("save", "--output", str(tar), reference, timeout_s=SAVE_TIMEOUT_S)
        if saved.returncode != 0:
            raise ConfigError(f"{where}: image {reference} cannot be saved: {_tail(saved)}")
        store.import_tar(tar, name)
    file = _facts_file(name, store)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(image)))
    partial.replace(file)
    return image


def _facts_file(name: str, store: Any) -> Path:
    return Path(store.root).parent / "task_images" / f"{name}.json"


def _docker(*argv: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["docker", *argv], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise ConfigError(
            "a task's image needs the 'docker' command, which is not installed; or name an image of "
            "'glmgym image list' as [environment] docker_image"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"'docker {argv[0]}' took longer than {timeout_s:g} s; see [environment] build_timeout_sec"
        ) from None


def _tail(process: subprocess.CompletedProcess[bytes]) -> str:
    lines = (process.stdout + process.stderr).decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines[-LAST_LINES:] if line.strip())

"""The boxes of a task: what ``[environment]``, the phases and the image's configuration come to as a ``BoxSpec``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from glmgym.errors import ConfigError
from glmgym.sandbox import BoxSpec, Limits, Network
from glmgym_envs.harbor.image import TaskImage, image_of
from glmgym_envs.harbor.schema import Environment, Phase, network
from glmgym_envs.harbor.task import HarborTask, Stage

PIDS = 256
OUTPUT_BYTES = 64 * 1024
PLACE = "/work"  # of a box whose image works in a directory that no box can mount
_UNMOUNTABLE = {
    "",
    "usr",
    "bin",
    "boot",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "etc",
    "proc",
    "dev",
    "run",
    "sys",
    "tmp",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Boxes:
    """A task with its images at hand. ``grading`` has a spec for each stage that is graded in a box of its own."""

    task: HarborTask
    spec: BoxSpec
    workdir: str
    grading: Mapping[str, tuple[BoxSpec, str]]  # by stage, with the working directory

    def agent_network(self, stage: Stage) -> Network:
        return _reach(self.task.config.environment, stage.agent)

    def grading_workdir(self, stage: Stage) -> str:
        """Where its tests run."""
        return self.grading[stage.name][1] if stage.separate else self.workdir

    def verifier_network(self, stage: Stage) -> Network:
        return _reach(self.task.config.environment, stage.verifier)


def boxes_of(task: HarborTask) -> Boxes:
    """The specs of a task's boxes; builds and imports images that are not there yet.

    Raises:
        ConfigError: see ``image_of``; or a variable of ``[verifier] env`` is not set on this machine.
    """
    where = f"{task.directory / 'task.toml'} [environment]"
    config = task.config
    image = image_of(config.environment, task.environment, where=where)
    workdir = config.environment.workdir or image.workdir or "/"
    phases: list[Phase] = [stage.agent for stage in task.stages]
    phases += [stage.verifier for stage in task.stages if not stage.separate]
    hosts = tuple(dict.fromkeys(host for phase in phases for host in _reach(config.environment, phase).hosts))
    spec = _spec(config.environment, image, config.agent.user, workdir, Network(hosts=hosts))
    grading: dict[str, tuple[BoxSpec, str]] = {}
    for stage in task.stages:
        resolve(stage.verifier.env, where=f"{task.directory / 'task.toml'} [verifier] env")
        if stage.separate:
            grading[stage.name] = _grading_spec(task, stage, image, workdir)
    return Boxes(task, spec, workdir, grading)


def resolve(values: Mapping[str, str], *, where: str) -> dict[str, str]:
    """``${NAME}`` and ``${NAME:-default}`` from this process's environment.

    Raises:
        ConfigError: a variable without a default is not set.
    """

    def look_up(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise ConfigError(
                f"{where}: {match[0]} is not set; export {match[1]}, or give a default: ${{{match[1]}:-...}}"
            )
        return found

    return {key: _VARIABLE.sub(look_up, value) for key, value in values.items()}


def _grading_spec(task: HarborTask, stage: Stage, image: TaskImage, workdir: str) -> tuple[BoxSpec, str]:
    own = stage.verifier.environment
    context = next((place for place in reversed(stage.tests) if (place / "Dockerfile").is_file()), None)
    environment = own or task.config.environment
    where = f"{task.directory / 'task.toml'} [verifier.environment]"
    if own is not None and not own.docker_image and context is None:
        raise ConfigError(f"{where} docker_image is missing, and there is no {stage.tests[-1] / 'Dockerfile'}")
    if context is not None and not (own is not None and own.docker_image):
        image = image_of(environment.model_copy(update={"docker_image": ""}), context, where=where)
    elif own is not None:
        image = image_of(own, task.environment, where=where)
    if own is not None or context is not None:
        workdir = (own.workdir if own is not None else "") or image.workdir or workdir
    spec = _spec(environment, image, stage.verifier.user, workdir, _reach(environment, stage.verifier))
    return spec, workdir


def _spec(environment: Environment, image: TaskImage, user: str, workdir: str, network: Network) -> BoxSpec:
    user = user or image.user or "root"
    limits = Limits(environment.memory_mb, PIDS, environment.cpus, environment.storage_mb, OUTPUT_BYTES)
    home = {"HOME": "/root"} if user in ("root", "0") else {}
    env = {**home, **image.env, **environment.env}
    return BoxSpec(image.name, _place(workdir), env, limits, user, writable_root=True, network=network)


def _place(workdir: str) -> str:
    return PLACE if workdir.strip("/").split("/")[0] in _UNMOUNTABLE else workdir


def _reach(environment: Environment, phase: Phase) -> Network:
    """What a phase may reach: its own word before the environment's."""
    named = phase if phase.network_mode is not None or phase.allowed_hosts is not None else environment
    return network(named.allowed_hosts or ()) if named.network_mode in (None, "allowlist") else Network()

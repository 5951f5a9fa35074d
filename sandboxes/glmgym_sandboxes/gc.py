"""``glmgym gc``: removes what killed processes left of their boxes, and nothing that a living process owns.

Containers, volumes, networks and fork images of a container engine, and what ``leftovers`` finds on this machine: each
names its owner (``glmgym.owner``), and goes when that owner is gone. Without aiodocker, or without an engine,
the engine's part is skipped and the rest is done. Doing it twice, or two at once, is fine. An engine finishes a request
whose client died: what it makes after the look is for the next one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from glmgym.errors import SandboxFailure, boundary
from glmgym.owner import HOST_LABEL, OWNER_LABEL, Owner, why_kept
from glmgym_sandboxes import leftovers

if TYPE_CHECKING:
    import aiodocker

FORK_PREFIX = "glmgym/fork-"  # of the tags of images committed by ``Sandbox.fork``
ANSWER_S = 20.0  # for the engine to list what it has
REMOVAL_S = 60.0  # for one removal
BUSY_S = 10.0  # for a removal in progress, or for what still uses the thing, to end
_REMOVALS_AT_ONCE = 4
_BUSY = (403, 409)  # 403: a network with endpoints
Kind = Literal["container", "image", "volume", "network", "cgroup", "mount", "scratch", "engine"]
Result = Literal["removed", "would remove", "kept", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that carries our name, and what became of it."""

    kind: Kind
    id: str  # the engine's id or name; a path
    owner: str  # ``str`` of an Owner; "" if it names none
    age_s: float | None
    result: Result
    reason: str = ""  # why it was kept, skipped, or could not be removed

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Thing:
    kind: Kind
    id: str
    owner: str
    host: str
    created: float | None  # seconds since 1970
    remove: Callable[[], Awaitable[object]]  # raises SandboxFailure: it is still there


async def collect_garbage(dry_run: bool = False) -> list[Finding]:
    """Find what carries an owner and remove what has no living one.

    Args:
        dry_run: only say what would be removed.

    Returns:
        One finding per thing, the engine's first. What somebody else removed in the meantime counts as removed.
    """
    findings = []
    addresses = _addresses()
    if not importlib.util.find_spec("aiodocker"):
        skipped = "containers need the docker extra: pip install 'glmgym[docker]'"
        findings.append(Finding("engine", "docker", "", None, "skipped", skipped))
    elif not addresses:
        skipped = "no container engine has a socket here; DOCKER_HOST names one elsewhere"
        findings.append(Finding("engine", "docker", "", None, "skipped", skipped))
    else:
        for address in addresses:
            findings += await _collect_engine(address, dry_run)
    ours = [_of_this_machine(left) for left in await asyncio.to_thread(leftovers.find)]
    return findings + await _settle(ours, dry_run)


async def _settle(things: list[_Thing], dry_run: bool, *, at_once: int = 1) -> list[Finding]:
    """Remove what is garbage, in order unless several are removed ``at_once``."""
    reasons = await asyncio.to_thread(_reasons, things)
    turns = asyncio.Semaphore(at_once)

    async def settle(thing: _Thing, kept: str) -> Finding:
        age_s = None if thing.created is None else max(time.time() - thing.created, 0.0)
        found = partial(Finding, thing.kind, thing.id, thing.owner, age_s)
        if kept:
            return found("kept", kept)
        if dry_run:
            return found("would remove")
        async with turns:
            try:
                with boundary(SandboxFailure, f"remove {thing.kind} {thing.id}"):
                    await thing.remove()
            except SandboxFailure as failure:
                return found("failed", str(failure))
        return found("removed")

    return await asyncio.gather(*(settle(thing, kept) for thing, kept in zip(things, reasons, strict=True)))


def _reasons(things: list[_Thing]) -> list[str]:
    """Why each is kept, "" for garbage; a driver's many things are judged together, so that none is half removed."""
    verdicts: dict[tuple[str, str], str] = {}
    for key in {(thing.owner, thing.host) for thing in things}:
        owner = Owner.parse(key[0])
        verdicts[key] = "it names no owner" if owner is None else why_kept(owner, key[1])
    return [verdicts[thing.owner, thing.host] for thing in things]


def _of_this_machine(left: leftovers.Leftover) -> _Thing:
    remove = partial(asyncio.to_thread, leftovers.remove, left)
    return _Thing(left.kind, str(left.path), str(left.owner), socket.gethostname(), left.created, remove)


def _addresses() -> list[str]:
    """Of the engines boxes are opened in: the one DOCKER_HOST names, or every socket where Docker or podman listens."""
    if named := os.environ.get("DOCKER_HOST"):
        return [named]
    user = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    places = ["/run/docker.sock", "/var/run/docker.sock", f"{user}/docker.sock", "/run/podman/podman.sock"]
    places += [f"{user}/podman/podman.sock", os.path.expanduser("~/.docker/run/docker.sock")]
    return [f"unix://{path}" for path in dict.fromkeys(map(os.path.realpath, places)) if os.path.exists(path)]


async def _collect_engine(address: str, dry_run: bool) -> list[Finding]:
    import aiodocker

    try:
        with boundary(SandboxFailure, f"container engine at {address}"):
            docker = aiodocker.Docker(url=address)
            try:
                async with asyncio.timeout(ANSWER_S):
                    containers, others = await _containers(docker), await _others(docker)
                # Containers first: they use the rest.
                findings = await _settle(containers, dry_run, at_once=_REMOVALS_AT_ONCE)
                return findings + await _settle(others, dry_run)
            finally:
                await docker.close()
    except SandboxFailure as failure:
        return [Finding("engine", address, "", None, "skipped", str(failure))]


async def _containers(docker: aiodocker.Docker) -> list[_Thing]:
    """Running ones, dead ones, and those created and never started, which no engine removes by itself."""
    found = await docker.containers.list(all=True, filters=json.dumps({"label": [OWNER_LABEL]}))
    return [
        _labelled("container", one.id[:12], one["Labels"], one["Created"], partial(one.delete, force=True, v=True))
        for one in found
    ]


async def _others(docker: aiodocker.Docker) -> list[_Thing]:
    """Images, a fork of a fork before its parent, which it keeps in use; volumes; networks."""
    ours = {"label": [OWNER_LABEL]}
    listed = await docker.images.list(filters=ours, all=True)
    listed += await docker.images.list(filters={"reference": [FORK_PREFIX + "*"]})
    images = {image["Id"]: image for image in listed}
    things = []
    for image in sorted(images.values(), key=lambda image: -_generation(image, images)):
        name = next(iter(image["RepoTags"] or ()), image["Id"][7:19])
        # No pruning of its parents: one may be an image without a name that is not ours.
        remove = partial(docker.images.delete, image["Id"], force=True, noprune=True)
        things.append(_labelled("image", name, image["Labels"], image["Created"], remove))
    volumes: Any = docker.volumes  # aiodocker gives these and their deletion no types
    for volume in (await volumes.list(filters=ours))["Volumes"] or ():
        delete = partial(_delete, volumes, volume["Name"])
        things.append(_labelled("volume", volume["Name"], volume["Labels"], volume.get("CreatedAt"), delete))
    for network in await docker.networks.list(filters=ours):
        delete = partial(_delete, docker.networks, network["Id"])
        things.append(_labelled("network", network["Name"], network["Labels"], network.get("Created"), delete))
    return things


def _generation(image: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]]) -> int:
    """How many of the images it is a fork of, by the engine's word: their times are whole seconds."""
    parent = images.get(image["ParentId"])
    return 0 if parent is None else 1 + _generation(parent, images)


async def _delete(volumes_or_networks: Any, id: str) -> None:
    await (await volumes_or_networks.get(id)).delete()


def _labelled(
    kind: Kind,
    id: str,
    labels: Mapping[str, str] | None,
    created: float | str | None,
    remove: Callable[[], Awaitable[object]],
) -> _Thing:
    owner, host = ((labels or {}).get(label, "") for label in (OWNER_LABEL, HOST_LABEL))
    seconds = datetime.fromisoformat(created).timestamp() if isinstance(created, str) else created
    return _Thing(kind, id, owner, host, seconds, partial(_insist, remove))


async def _insist(remove: Callable[[], Awaitable[object]]) -> None:
    """Remove a thing of the engine: gone already is fine; in use or being removed, it is tried again for a while."""
    import aiodocker

    from glmgym_sandboxes.docker.engine import is_gone

    end = time.monotonic() + BUSY_S
    while True:
        try:
            async with asyncio.timeout(REMOVAL_S):
                await remove()
        except aiodocker.DockerError as error:
            if is_gone(error):
                return
            if error.status not in _BUSY or time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
        else:
            return

"""The Docker backend: boxes are containers whose main process is the agent. The production backend.

A box has no network, no capabilities, no new privileges, the engine's default seccomp profile, uid 1000, a read-only
root and sized memory for its working directory and /tmp; with ``writable_root`` the working directory is the image's
own. It lives as long as this process holds the connection to its streams: when that breaks, whoever broke it, the
engine closes the agent's input, the agent ends, and the engine removes the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from glmgym.errors import ConfigError, SandboxFailure, boundary
from glmgym.owner import HOST_LABEL, OWNER_LABEL, Owner
from glmgym.sandbox import BoxSpec, SandboxProvider
from glmgym.settings import Settings, parse_settings
from glmgym_sandboxes import agent
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.client import AgentBox, Transport
from glmgym_sandboxes.docker import config, direct, interpreter, profile
from glmgym_sandboxes.docker.direct import listen
from glmgym_sandboxes.docker.engine import Engine, EngineError
from glmgym_sandboxes.docker.images import DEFAULT_IMAGE, EngineImage, Images
from glmgym_sandboxes.docker.snapshots import Snapshots
from glmgym_sandboxes.docker.stream import Attached, attach
from glmgym_sandboxes.fork import Snapshot
from glmgym_sandboxes.gateway import PLACE as GATEWAY_PLACE
from glmgym_sandboxes.gateway import open_gateway
from glmgym_sandboxes.images import ImageStore, default_root
from glmgym_sandboxes.pool import WarmPool

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
DEFAULT_SOCKET = "/var/run/docker.sock"
_ids = itertools.count()
T = TypeVar("T")


class DockerSettings(Settings):
    warm: int = Field(2, ge=0)  # started boxes kept per specification
    max_live: int = Field(64, ge=1)  # boxes at once, warm ones included
    max_starting: int = Field(2 * (os.cpu_count() or 1), ge=1)  # starts at once
    socket: str = ""  # path of the engine's Unix socket; "" for that of DOCKER_HOST, or else the usual one
    runtime: str = ""  # the engine's name of an OCI runtime, such as "runsc"; "" for its default


class DockerProvider:
    """A ``SandboxProvider``; see the module. ``disk_mb`` bounds the working directory and /tmp, each."""

    def __init__(self, settings: DockerSettings, socket_path: str, name: str = "docker") -> None:
        self.name = name
        self._runtime = settings.runtime
        self._max_live = settings.max_live
        self._engine = Engine(socket_path)
        self._images = Images(self._engine, ImageStore())
        self._owner = Owner.current()
        self._snapshots = Snapshots(self._engine, self._owner)
        self._info: Mapping[str, Any] | None = None
        self._is_podman = False
        self._seccomp = ""  # a profile of ours, or "" for the engine's own
        self._agent = ""
        self._pythons: dict[str, str] = {}  # by id of an image that has none: the directory to mount
        self._users: dict[tuple[str, str], tuple[int, int]] = {}  # by image and name
        self._preparing = asyncio.Lock()
        self._left: set[str] = set()  # containers that the engine has not removed when it was asked to
        self._pool = WarmPool(
            self._start, warm=settings.warm, max_live=settings.max_live, max_starting=settings.max_starting
        )

    @property
    def limits_note(self) -> str:
        """What the engine says that it cannot limit; it is asked when the first box is opened."""
        notes = ["The disk that a box with a writable root takes outside /tmp is not limited."]
        if self._info is None:
            return " ".join([*notes, "Other limits are known once a box has been opened."])
        for key, what in (
            ("MemoryLimit", "Memory"),
            ("SwapLimit", "Swap"),
            ("PidsLimit", "The number of processes"),
            ("CpuCfsQuota", "CPU time"),
        ):
            if not self._info.get(key, True):
                notes.append(f"{what} is not limited: the engine's machine has no control group for it.")
        if self._is_podman and not self._seccomp:
            notes.append(
                "Namespaces may be made in a box: podman's profile is not on this machine, to make it stricter."
            )
        return " ".join(notes)

    async def open(self, spec: BoxSpec) -> AgentBox:
        config.check(spec)
        return await self._pool.open(spec)

    async def close(self) -> None:
        await self._pool.close()
        await self._images.close()
        for name in sorted(self._left):
            with contextlib.suppress(EngineError):  # ``glmgym gc`` finds it by its label
                await self._engine.remove(name)
        with contextlib.suppress(EngineError):
            await self._snapshots.sweep()
        await self._engine.close()

    async def _start(self, spec: BoxSpec) -> AgentBox:
        name = f"glmgym-{self._owner}-{next(_ids)}"
        with boundary(SandboxFailure, f"start box {name} with {self.name}"):
            await self._prepare()
            image = await self._images.find(spec.image)
            user = await self._user(spec, image)
            python = self._pythons.get(image.id, "")
            try:
                return await self._launch(name, spec, image, user, python)
            except BaseException as error:
                await asyncio.shield(self._remove(name))
                if python or not isinstance(error, EngineError) or not config.lacks_python(error.message):
                    raise
            logger.info("image %s has no python3: its boxes get the one of this process", spec.image)
            self._pythons[image.id] = str(await asyncio.to_thread(interpreter.prepare, default_root().parent))
            return await self._start(spec)

    async def _launch(
        self, name: str, spec: BoxSpec, image: EngineImage, user: tuple[int, int], python: str
    ) -> AgentBox:
        """Create, attach, start, and wait for the agent's first word. The caller removes what a failure leaves."""
        assert self._info is not None
        async with listen() as line, contextlib.AsyncExitStack() as failing:
            gateway = await open_gateway(spec.network)
            command = interpreter.command() if python else ["python3"]
            brought = {self._agent: config.AGENT_PATH, str(line.directory): direct.PLACE}
            if gateway is not None:
                failing.push_async_callback(gateway.close)
                brought[str(gateway.directory)] = GATEWAY_PLACE
            if python:
                brought[python] = interpreter.PLACE
            wanted = config.container(
                spec,
                image=image.id,
                user=user,
                python=command,
                brought=brought,
                runtime=self._runtime,
                cpus=float(self._info.get("NCPU", os.cpu_count() or 1)),
                podman=self._is_podman,
                seccomp=self._seccomp,
                labels=self._labels(),
            )
            since = time.time()
            await _to_its_end(self._engine.create(name, wanted))
            if spec.writable_root:
                await self._engine.make_directory(name, spec.cwd, user)
            streams = await attach(self._engine.socket, name)
            failing.callback(streams.writer.close)
            await _to_its_end(self._engine.start(name))

            async def destroy() -> str:
                words = await self._remove(name)
                if streams.ended_by_engine:
                    words = "; ".join(filter(None, [await self._last_words(name, since, streams), words]))
                return words

            snapshot = functools.partial(self._snapshot, name) if spec.writable_root else None
            transport = Transport(streams, streams.writer, destroy, snapshot, gateway, line, command)
            box = AgentBox(name, image.digest, spec, transport, self._open_sibling, self._max_live - 1)
            failing.push_async_callback(box.close)
            await box.ready(START_TIMEOUT_S)
            failing.pop_all()
            return box

    async def _open_sibling(self, spec: BoxSpec) -> AgentBox:
        return await self._pool.open(spec, keep_warm=False)

    @contextlib.asynccontextmanager
    async def _snapshot(self, name: str) -> AsyncIterator[Snapshot[AgentBox]]:
        """The image layer of a box with a writable root; its /tmp is memory, which is not part of it."""
        async with self._snapshots.taken(name) as image:
            yield Snapshot(lambda spec: self._open_sibling(dataclasses.replace(spec, image=image)), ("/tmp",))

    async def _user(self, spec: BoxSpec, image: EngineImage) -> tuple[int, int]:
        """uid and gid of the box's user: looked up in the image, in a container that is never started."""
        if not spec.user:
            return config.DEFAULT_USER
        found = self._users.get((image.id, spec.user))
        if found is None:
            name = f"glmgym-{self._owner}-{next(_ids)}-user"
            try:
                await _to_its_end(
                    self._engine.create(name, {"Image": image.id, "Cmd": ["/"], "Labels": self._labels()})
                )
                passwd = await self._engine.read_file(name, "/etc/passwd")
            finally:
                await asyncio.shield(self._remove(name))
            found = config.user_in(passwd or "", spec.user)
            if found is None:
                raise ImpossibleBox(f"user {spec.user!r}: image {spec.image or DEFAULT_IMAGE!r} has no such user")
            self._users[image.id, spec.user] = found
        return found

    def _labels(self) -> dict[str, str]:
        created = str(int(time.time()))
        return {OWNER_LABEL: str(self._owner), HOST_LABEL: socket.gethostname(), "glmgym.created": created}

    async def _remove(self, name: str) -> str:
        """Returns what went wrong, "" when the container is gone: a box that ends must not raise."""
        try:
            await self._engine.remove(name)
            await self._snapshots.sweep()
        except EngineError as error:
            # Without an answer it may never have been made, and whoever asked hears that the engine is gone.
            logger.log(logging.WARNING if error.status else logging.INFO, "container %s is left: %s", name, error)
            self._left.add(name)
            return str(error)
        return ""

    async def _last_words(self, name: str, since: float, streams: Attached) -> str:
        words = streams.stderr.decode("utf-8", "replace").strip()
        with contextlib.suppress(EngineError):  # then the streams broke because the engine is gone, and removal says so
            words = "; ".join(filter(None, [await self._engine.end_of(name, since), words]))
        return words

    async def _prepare(self) -> None:
        """Once: what the engine can limit, and the agent's file where a container can be given it."""
        async with self._preparing:
            if self._info is None:
                source = await asyncio.to_thread(Path(agent.__file__).read_bytes)
                self._agent = await asyncio.to_thread(_kept, source, ".py")
                self._is_podman = await self._engine.is_podman()
                if self._is_podman and (filter := await asyncio.to_thread(profile.text)):
                    self._seccomp = await asyncio.to_thread(_kept, filter.encode(), ".json")
                self._info = await self._engine.info()


def open_provider(settings: Mapping[str, Any] | None = None) -> SandboxProvider:
    """The backend, by its settings (see ``DockerSettings``). Call it while the event loop runs.

    Raises:
        ConfigError: an unknown or impossible setting, or a DOCKER_HOST that is no Unix socket. Whether an engine
            answers there shows when the first box is opened.
    """
    return open_engine("docker", "DOCKER_HOST", DEFAULT_SOCKET, settings)


def open_engine(
    name: str, variable: str, default_socket: str, settings: Mapping[str, Any] | None = None
) -> SandboxProvider:
    """The backend ``name``, whose engine is where the settings say, or else the environment variable, or the default.

    Raises:
        ConfigError: see ``open_provider``.
    """
    parsed = parse_settings(DockerSettings, settings or {}, where="[sandbox]")
    return DockerProvider(parsed, parsed.socket.removeprefix("unix://") or _named(variable) or default_socket, name)


def _named(variable: str) -> str:
    """Raises ConfigError: the environment variable names an engine that is not on this machine."""
    host = os.environ.get(variable, "")
    if host and not host.startswith("unix://"):
        raise ConfigError(f"{variable}={host}: only an engine behind unix:// works; or set [sandbox] socket")
    return host.removeprefix("unix://")


def _kept(content: bytes, suffix: str) -> str:
    """A file with that content, which anybody may read, named by it, so that it never changes. Blocking."""
    path = default_root().parent / "agent" / f"{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.chmod(0o644)
        partial.replace(path)
    return str(path.resolve())


async def _to_its_end(work: Awaitable[T]) -> T:
    """Await a change in the engine; cancelled, still wait for it, since only then can it be undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

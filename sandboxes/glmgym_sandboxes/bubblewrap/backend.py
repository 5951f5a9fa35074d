"""The provider of bubblewrap boxes: prepares each image once, starts boxes over it, and keeps a pool of warm ones."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import posixpath
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from glmgym import scratch
from glmgym.errors import SandboxFailure, boundary
from glmgym.sandbox import BoxSpec, SandboxProvider
from glmgym.settings import Settings, parse_settings
from glmgym.threads import in_thread
from glmgym_sandboxes import agent, bounds, cgroup
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.bubblewrap.arguments import HOST_USERS, Base, agent_command, arguments, check_place
from glmgym_sandboxes.bubblewrap.host import Host, Layer, upper_of
from glmgym_sandboxes.bubblewrap.layers import copy_in
from glmgym_sandboxes.bubblewrap.process import Process, end, kill_inside, spawn, stopped
from glmgym_sandboxes.bubblewrap.rootfs import RootFs, find_user, open_root
from glmgym_sandboxes.client import AgentBox, Transport
from glmgym_sandboxes.fork import Snapshot
from glmgym_sandboxes.gateway import open_gateway
from glmgym_sandboxes.pool import WarmPool
from glmgym_sandboxes.seccomp import filter_for

START_TIMEOUT_S = 30.0
MAX_CODE_BYTES = 1 << 20  # of a few tens of thousands
# Compiles the agent with the box's own Python: loading it then costs a third of compiling it at each start.
_COMPILE = (
    "import sys; sys.version_info >= (3, 9) or sys.exit('Python 3.9 or later is needed, this is %d.%d' % "
    "sys.version_info[:2]); import marshal, _imp, importlib.util as u; "
    "code = compile(sys.stdin.read(), 'agent', 'exec', optimize=2); "
    "sys.stdout.buffer.write(u.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))"
)
_ADVICE = (
    "; bubblewrap needs user namespaces: on a desktop or server try 'sysctl -w kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=10000', in a container start it with "
    "'--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined', "
    "or use another sandbox backend"
)
_ids = itertools.count()


class BubblewrapSettings(Settings):
    warm: int = Field(2, ge=0)  # started boxes kept per specification
    max_live: int = Field(64, ge=1)  # boxes at once, warm ones included
    max_starting: int = Field(2 * (os.cpu_count() or 1), ge=1)  # starts at once


class _Interrupted(Exception):
    """A Ctrl-C, which is for the driver alone, struck a starting box before it had a session of its own."""


class BubblewrapProvider:
    """A ``SandboxProvider``; see the package.

    An image is a name in the image store or the absolute path of a root filesystem's directory, looked up once per
    provider; "" is this machine's own /usr, which stays read-only in a writable root. All of an image belongs to the
    user of the box, whoever that is: namespaces without privileges know one user. ``disk_mb`` bounds /tmp and the
    working directory, each; with a writable root, /tmp and the root, the working directory being part of it.
    """

    name = "bubblewrap"

    def __init__(self, settings: BubblewrapSettings, host: Host) -> None:
        self.limits_note = host.limits_note
        self._host = host
        self._seccomp = filter_for(platform.machine())
        self._bases: dict[str, Base] = {}  # by image
        self._forks: dict[str, tuple[str, str]] = {}  # name of a snapshot: image, and what siblings start with
        self._preparing = asyncio.Lock()
        self._max_live = settings.max_live
        self._pool = WarmPool(
            self._start, warm=settings.warm, max_live=settings.max_live, max_starting=settings.max_starting
        )

    async def open(self, spec: BoxSpec) -> AgentBox:
        bounds.check(spec.limits, spec.env)
        return await self._pool.open(spec)

    async def close(self) -> None:
        await self._pool.close()
        for base in self._bases.values():
            if base.root is not None:
                base.root.close()
        self._bases.clear()

    async def _start(self, spec: BoxSpec) -> AgentBox:
        id = f"bwrap-{os.getpid()}-{next(_ids)}"
        with boundary(SandboxFailure, f"start box {id} with bubblewrap"):
            image, seed = self._forks.get(spec.image, (spec.image, ""))
            spec = replace(spec, image=image)
            base = self._bases.get(spec.image) or await self._prepare(spec.image)
            while True:
                groups = await in_thread(self._check_and_make_groups, spec, base, undo=_remove_all)
                try:
                    box, child = await self._launch(id, spec, base, seed, groups)
                    break
                except BaseException as error:
                    await asyncio.to_thread(_remove_all, groups)
                    if not isinstance(error, _Interrupted):
                        raise
            try:
                for group in groups:  # nothing but the agent is in the box yet, and its children will inherit the group
                    await asyncio.to_thread(group.join, child)
            except BaseException:
                await box.close()
                raise
            return box

    async def _launch(
        self, id: str, spec: BoxSpec, base: Base, seed: str, groups: list[cgroup.Group]
    ) -> tuple[AgentBox, int]:
        """Start bwrap with the agent in it and wait for its first word. Returns the agent's pid on this machine."""
        async with contextlib.AsyncExitStack() as failing:
            gateway = await open_gateway(spec.network)
            if gateway is not None:
                failing.push_async_callback(gateway.close)
            gate = str(gateway.directory) if gateway is not None else ""
            # Not a pipe: without a reader, as when the driver dies now, bwrap would end with its child half made.
            info = os.memfd_create("info")
            with os.fdopen(info):
                process = await self._spawn(spec, base, agent_command(spec, base, self._host), info, seed, gate)

                async def destroy() -> str:
                    last_words = await end(process)
                    await asyncio.to_thread(_remove_all, groups)
                    return last_words

                snapshot = functools.partial(self._snapshot, spec, process.pid) if spec.writable_root else None
                transport = Transport(process.stdout, process.stdin, destroy, snapshot, gateway)
                box = AgentBox(id, base.digest, spec, transport, self._open_sibling, self._max_live - 1)
                failing.push_async_callback(box.close)
                try:
                    await box.ready(START_TIMEOUT_S)
                except SandboxFailure as failure:
                    if process.returncode == -signal.SIGINT:
                        raise _Interrupted from failure
                    lacks_namespaces = "bwrap:" in str(failure) and base.root is None
                    raise SandboxFailure(f"{failure}{_ADVICE if lacks_namespaces else ''}") from failure
                failing.pop_all()
                return box, int(json.loads(os.pread(info, 4096, 0))["child-pid"])

    async def _open_sibling(self, spec: BoxSpec) -> AgentBox:
        return await self._pool.open(spec, keep_warm=False)

    @contextlib.asynccontextmanager
    async def _snapshot(self, spec: BoxSpec, pid: int) -> AsyncIterator[Snapshot[AgentBox]]:
        """A copy of a box's upper layer on disk; siblings start with a copy of that. Its /tmp is not part of it."""
        name = f"\0fork-{next(_ids)}"  # no image has such a name
        with boundary(SandboxFailure, f"copy the root of a box of image {spec.image!r}"):
            copy = await in_thread(_copy_still, pid, undo=scratch.remove)
        self._forks[name] = (spec.image, str(copy))
        try:
            yield Snapshot(lambda wanted: self._open_sibling(replace(wanted, image=name)), ("/tmp",))
        finally:
            del self._forks[name]
            await asyncio.to_thread(scratch.remove, copy)

    async def _spawn(
        self, spec: BoxSpec, base: Base, command: list[str], info: int, seed: str = "", gate: str = ""
    ) -> Process:
        users = HOST_USERS if base.root is None else base.root.users
        with contextlib.ExitStack() as passing:
            inherited: list[int] = []
            try:
                user = find_user(spec.user, users)
                options = arguments(
                    spec, base, user, self._host, self._seccomp, inherited, forked=bool(seed), gate=gate
                )
            finally:
                for fd in inherited:
                    passing.callback(os.close, fd)
            place = posixpath.normpath(spec.cwd)
            layer = Layer(spec.limits.disk_mb << 20, place, seed) if spec.writable_root else None
            start = self._host.start(base.root.namespace if base.root is not None else 0, layer)
            argv = [*start, "--info-fd", str(info), *options, "--", *command]
            return await spawn(argv, self._host, (info, *inherited))

    def _check_and_make_groups(self, spec: BoxSpec, base: Base) -> list[cgroup.Group]:
        check_place(spec, base.root)
        limits = spec.limits
        values: dict[cgroup.Kind, float] = {"memory": limits.memory_mb << 20, "pids": limits.pids, "cpu": limits.cpus}
        return cgroup.create((controller, values[kind]) for kind, controller in self._host.controllers.items())

    async def _prepare(self, image: str) -> Base:
        """Look up an image and compile the agent for it, once."""
        async with self._preparing:
            if image not in self._bases:
                source = await asyncio.to_thread(Path(agent.__file__).read_bytes)
                make = self._own_base(source) if not image else self._image_base(image, source)
                self._bases[image] = await make
            return self._bases[image]

    async def _own_base(self, source: bytes) -> Base:
        process = await spawn([self._host.python, "-I", "-S", "-c", _COMPILE], self._host)
        code, problem = await _compiled(process, source)
        if not code:
            raise ImpossibleBox(f"{self._host.python}: {problem}")
        facts = [source, self._seccomp or b"", platform.platform().encode(), _os_release()]
        digest = "host:" + hashlib.sha256(b"\0".join(facts)).hexdigest()
        return Base(None, (self._host.python,), carried=False, code=code, digest=digest)

    async def _image_base(self, image: str, source: bytes) -> Base:
        root = await in_thread(open_root, image, self._host.run_as, undo=RootFs.close)
        try:
            base = Base(root, ("python3",), carried=False, code=b"", digest=root.digest)
            code, problem = await self._compile_inside(base, source)
            if code:
                return replace(base, code=code)
            carried = await asyncio.to_thread(self._host.carried_python)
            if carried is None:
                raise ImpossibleBox(f"image {image!r}: {problem}; install python3 in it, or in this machine's /usr")
            base = replace(base, python=tuple(carried), carried=True)
            code, other = await self._compile_inside(base, source)
            if code:
                return replace(base, code=code)
            raise ImpossibleBox(f"image {image!r}: {problem}; and with this machine's Python: {other}")
        except BaseException:
            root.close()
            raise

    async def _compile_inside(self, base: Base, source: bytes) -> tuple[bytes, str]:
        """The agent compiled by the base's Python in a box of its own, or b"" and why not."""
        info = os.memfd_create("info")
        try:
            process = await self._spawn(BoxSpec(), base, [*base.python, "-I", "-S", "-c", _COMPILE], info)
        finally:
            os.close(info)
        return await _compiled(process, source)


def open_provider(settings: Mapping[str, Any] | None = None) -> SandboxProvider:
    """The backend, by its settings (see ``BubblewrapSettings``). Call it while the event loop runs.

    Raises:
        ConfigError: an unknown or impossible setting.
        SandboxFailure: this machine has no bubblewrap. Whether it may be used shows when the first box is opened.
    """
    host = Host.look()
    for controller in host.controllers.values():
        controller.sweep()
    return BubblewrapProvider(parse_settings(BubblewrapSettings, settings or {}, where="[sandbox]"), host)


async def _compiled(process: Process, source: bytes) -> tuple[bytes, str]:
    """What a process of ``_COMPILE`` makes of the source, or b"" and why it made nothing."""
    code = b""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            with contextlib.suppress(ConnectionError):
                process.stdin.write(source)
                await process.stdin.drain()
            process.stdin.close()
            while len(code) <= MAX_CODE_BYTES and (piece := await process.stdout.read(MAX_CODE_BYTES)):
                code += piece
    except TimeoutError:
        await asyncio.to_thread(kill_inside, process.pid)
    finally:
        process.stdin.close()
        said = await end(process)
    if process.returncode == 0 and 0 < len(code) <= MAX_CODE_BYTES:
        return code, ""
    return b"", said or f"its python3 ended with {process.returncode} and {len(code)} bytes of code"


def _copy_still(pid: int) -> Path:
    """Copy the upper layer of the box whose bwrap has that pid, at one moment of it."""
    with stopped(pid):
        return copy_in(upper_of(pid))


def _os_release() -> bytes:
    path = Path("/etc/os-release")
    return path.read_bytes() if path.is_file() else b""


def _remove_all(groups: list[cgroup.Group]) -> None:
    for group in groups:
        group.remove()

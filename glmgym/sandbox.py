"""The contract of a sandbox: an isolated box that runs commands and holds files.

Backends live in ``glmgym_sandboxes``; ``FakeSandbox`` there is an in-memory implementation for tests of other parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from glmgym.errors import SandboxFailure

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


class BoxFileError(SandboxFailure):
    """A file in the box cannot be read or written (missing, too large, a directory, no permission): names the path."""

    retryable = False


class CommandError(SandboxFailure):
    """A command could not be started (no such program, working directory or user): names what is missing."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one box. A backend that cannot enforce one says so in its ``limits_note``."""

    memory_mb: int = 512  # of all processes together, swap included
    pids: int = 128
    cpus: float = 1.0  # cores' worth of time
    disk_mb: int = 256  # of each writable place
    output_bytes: int = 64 * 1024  # of each of stdout and stderr kept per command: head and tail


@dataclass(frozen=True, slots=True)
class Network:
    """What a box may reach beyond its own loopback: nothing, unless named here.

    ``services`` are ports of the driver's loopback; each is reached in the box as 127.0.0.1 with the same number.
    ``hosts`` are ``"name:port"`` or, for all below a name, ``"*.name:port"``; they are reached through an HTTP proxy
    that stands in ``http_proxy`` and ``https_proxy``. There is no other way out, so it cannot be gone around.

    Raises:
        ValueError: a port or a host is not of that form.
    """

    services: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for port in self.services:
            if not 0 < port < 65536:
                raise ValueError(f"network service {port!r}: a port is a number from 1 to 65535")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"network host {host!r}: write 'name:port' or '*.name:port'")

    def __bool__(self) -> bool:
        return bool(self.services or self.hosts)


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What box to open.

    ``image`` is a name of ``glmgym image list`` (Docker also knows its engine's own), "" for the backend's default.
    ``user`` runs the commands: a name or number in the image, never root unless asked for; "" for the backend's own.
    A box writes to ``cwd`` and /tmp; the rest is read-only unless ``writable_root``.
    """

    image: str = ""
    cwd: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    user: str = ""
    writable_root: bool = False
    network: Network = field(default_factory=Network)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did. A non-zero exit is data: 128 + n for signal n, 124 for a timeout. Bytes are exact; ``text``
    is the view for people and policies.

    ``stdout`` and ``stderr`` hold the head and the tail; ``dropped_bytes`` counts what was cut from their middles.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    dropped_bytes: int = 0
    wall_s: float = 0.0

    @property
    def text(self) -> str:
        """stdout then stderr as UTF-8 with replacement, ANSI sequences removed and carriage returns normalised."""
        return view(self.stdout + self.stderr)


class Shell(Protocol):
    """A persistent shell: ``cd`` and ``export`` last between commands."""

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run one command line; stdout and stderr arrive merged in ``stdout``.

        A timeout kills whatever the command started and gives ``timed_out=True``; if the shell itself ended
        (``exit 3``, ``exec``), the result carries its exit code. After either, the next call gets a fresh shell in the
        same directory, without what was exported.

        Raises:
            SandboxDead: the box is gone.
        """
        ...

    async def close(self) -> None: ...


class Sandbox(Protocol):
    """One box. Single owner; every call may raise ``SandboxDead``."""

    @property
    def id(self) -> str: ...

    @property
    def image_digest(self) -> str: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        cwd: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run one program, stdin closed after ``stdin``. A timeout leaves nothing alive.

        Raises:
            CommandError: the program or the working directory does not exist.
            SandboxDead: the box is gone.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Raises BoxFileError: missing, not a regular file (symlinks are refused), or larger than ``max_bytes``."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making parent directories."""
        ...

    async def put_tree(self, source: Path, path: str) -> None:
        """Copy a directory of this machine to ``path`` in the box: files, directories and symlinks, with their modes.

        What has the same names there is replaced, a directory is entered; the rest of ``path`` stays.

        Raises:
            BoxFileError: something in it is a device, pipe or socket, or it cannot be written in the box.
        """
        ...

    async def get_tree(
        self, path: str, target: Path, *, max_bytes: int = 256 * 1024 * 1024, max_files: int = 100_000
    ) -> None:
        """Copy a directory of the box to ``target``, which must not exist yet; streamed, so of any size.

        What a box holds is hostile: only directories and regular files are taken, and nothing is left at ``target``
        when the copy fails. Of the modes only the right to execute is kept; ``max_files`` counts directories too.

        Raises:
            BoxFileError: it is missing, or holds a symlink, device, pipe or socket, a name that would leave
                ``target``, or more than the limits allow; the message names the first such path.
        """
        ...

    async def fork(self, count: int = 1) -> list[Sandbox]:
        """``count`` new boxes that start with the files this one has now; its processes are not copied.

        Raises:
            ValueError: ``count`` is below 1, or more than can ever live beside this box.
            SandboxFailure: a sibling could not be started; none is left behind then.
        """
        ...

    async def set_network(self, network: Network) -> None:
        """Change what the box may reach from now on, as for its next phase; open connections it may not keep are cut.

        Raises:
            SandboxFailure: it names a service that the box was not opened with, or hosts for a box opened without any.
        """
        ...

    async def shell(self) -> Shell: ...

    async def close(self) -> None:
        """Kill everything in the box and drop its files. Idempotent; never raises for a box that is already dead."""
        ...


class SandboxProvider(Protocol):
    """Opens boxes of one backend, possibly from a warm pool."""

    @property
    def name(self) -> str: ...

    @property
    def limits_note(self) -> str:
        """A plain sentence for each limit this machine cannot enforce; empty when all are."""
        ...

    async def open(self, spec: BoxSpec) -> Sandbox:
        """A clean box nobody has used.

        Raises:
            SandboxFailure: it could not be started.
        """
        ...

    async def close(self) -> None:
        """Close every box, warm or in use."""
        ...


async def probe(provider: SandboxProvider) -> str:
    """Why no box of ``provider`` runs a command here, and what to do; "" if one does. Its limits are known then."""
    try:
        box = await provider.open(BoxSpec())
        result = await box.run(["/bin/sh", "-c", "echo works"])
        await box.close()
    except SandboxFailure as failure:
        return str(failure)
    return "" if result.stdout == b"works\n" else f"a {provider.name} box started, but its shell said {result.text!r}"


def view(data: bytes) -> str:
    """Bytes as a policy reads them: UTF-8 with replacement, no ANSI escapes, ``\\r\\n`` and lone ``\\r`` resolved."""
    text = _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    return "\n".join(
        line.rsplit("\r", 1)[-1] if "\r" in line.rstrip("\r") else line.rstrip("\r") for line in text.split("\n")
    )

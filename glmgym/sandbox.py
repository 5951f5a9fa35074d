"""The contract of a sandbox: an isolated box that runs commands and holds files.

Backends live in ``glmgym_sandboxes``; ``FakeSandbox`` there is an in-memory implementation for tests of other parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glmgym.errors import SandboxFailure

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

    memory_mb: int = 512
    pids: int = 128
    disk_mb: int = 256
    output_bytes: int = 64 * 1024  # of each of stdout and stderr kept per command: head and tail


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What box to open. ``image`` is "" for the backend's default root filesystem."""

    image: str = ""
    cwd: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


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


def view(data: bytes) -> str:
    """Bytes as a policy reads them: UTF-8 with replacement, no ANSI escapes, ``\\r\\n`` and lone ``\\r`` resolved."""
    text = _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    return "\n".join(
        line.rsplit("\r", 1)[-1] if "\r" in line.rstrip("\r") else line.rstrip("\r") for line in text.split("\n")
    )

"""An in-memory ``Sandbox`` for tests of other parts: files in a dictionary, commands played by a function you give.

A real implementation of the contract as far as it goes: it runs no programs, so what concerns processes does not apply.
"""

from __future__ import annotations

import itertools
import os.path
from collections.abc import Callable, Mapping, Sequence

from glmgym.errors import SandboxDead
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult

Handler = Callable[[Sequence[str], dict[str, bytes]], CommandResult]

_ids = itertools.count()


def no_commands(argv: Sequence[str], files: dict[str, bytes]) -> CommandResult:
    """The default handler: a box in which no program exists."""
    raise CommandError(f"program {argv[0]!r}: not found; give FakeProvider a handler that plays it")


class FakeSandbox:
    """``files`` maps absolute paths to contents; ``handler`` sees and may change it. ``kill`` makes the box dead."""

    image_digest = "fake"

    def __init__(self, spec: BoxSpec | None = None, handler: Handler = no_commands) -> None:
        self.id = f"fake-{next(_ids)}"
        self.files: dict[str, bytes] = {}
        self._spec = spec or BoxSpec()
        self._handler = handler
        self._death = ""

    def kill(self, reason: str = "it was killed") -> None:
        self._death = self._death or reason

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        cwd: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        self._check_alive()
        if not argv:
            raise CommandError("run: the command is empty; give a program and its arguments")
        return self._handler(list(argv), self.files)

    async def read(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        self._check_alive()
        data = self.files.get(self._absolute(path))
        if data is None:
            raise BoxFileError(f"{path}: No such file or directory")
        if len(data) > max_bytes:
            raise BoxFileError(f"{path}: has {len(data)} bytes, more than the {max_bytes} allowed")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_alive()
        held = sum(len(content) for name, content in self.files.items() if name != self._absolute(path))
        if held + len(data) > self._spec.limits.disk_mb << 20:
            raise BoxFileError(f"{path}: No space left on device")
        self.files[self._absolute(path)] = bytes(data)

    async def shell(self) -> FakeShell:
        self._check_alive()
        return FakeShell(self)

    async def close(self) -> None:
        self.kill("it was closed")

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._spec.cwd, path))

    def _check_alive(self) -> None:
        if self._death:
            raise SandboxDead(f"box {self.id} is gone: {self._death}")


class FakeShell:
    """Gives each command line to the box's handler as ``["bash", "-c", command]``."""

    def __init__(self, box: FakeSandbox) -> None:
        self._box = box

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        return await self._box.run(["bash", "-c", command], timeout_s=timeout_s)

    async def close(self) -> None:
        return None


class FakeProvider:
    """Opens ``FakeSandbox`` boxes and remembers them in ``boxes``."""

    name = "fake"
    limits_note = "Only disk_mb is enforced: nothing runs."

    def __init__(self, handler: Handler = no_commands) -> None:
        self.boxes: list[FakeSandbox] = []
        self._handler = handler

    async def open(self, spec: BoxSpec) -> FakeSandbox:
        box = FakeSandbox(spec, self._handler)
        self.boxes.append(box)
        return box

    async def close(self) -> None:
        for box in self.boxes:
            await box.close()

"""An in-memory ``Sandbox`` for tests of other parts: files in a dictionary, commands played by a function you give.

A real implementation of the contract as far as it goes: it runs no programs, so what concerns processes does not apply.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult, Network, Sandbox
from glmgym_sandboxes import agent, trees

Handler = Callable[[Sequence[str], dict[str, bytes]], CommandResult]

_ids = itertools.count()


def no_commands(argv: Sequence[str], files: dict[str, bytes]) -> CommandResult:
    """The default handler: a box in which no program exists."""
    raise CommandError(f"program {argv[0]!r}: not found; give FakeProvider a handler that plays it")


class FakeSandbox:
    """``files`` maps absolute paths to contents; ``handler`` sees and may change it. ``kill`` makes the box dead.

    ``modes`` has those of files other than 0644; ``links`` maps symlinks to where they point, and ``directories`` holds
    those known by more than what is in them. ``opened`` is told of every sibling.
    """

    image_digest = "fake"

    def __init__(
        self,
        spec: BoxSpec | None = None,
        handler: Handler = no_commands,
        opened: Callable[[FakeSandbox], object] | None = None,
    ) -> None:
        self.id = f"fake-{next(_ids)}"
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.links: dict[str, str] = {}
        self._spec = spec or BoxSpec()
        self.network = self._spec.network
        self.directories = {self._spec.cwd, "/tmp"}
        self._handler = handler
        self._opened = opened
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
        self.modes[self._absolute(path)] = mode

    async def put_tree(self, source: Path, path: str) -> None:
        self._check_alive()
        inside = [self._absolute(path)]
        self.directories.add(inside[0])
        async for piece in trees.read_tree(source):
            for kind, mode, _, name, content in agent.records(piece):
                here = os.path.join(inside[-1], os.fsdecode(name))
                if kind == agent.END:
                    inside.pop()
                elif kind == agent.DIRECTORY:
                    inside.append(here)
                    self.directories.add(here)
                elif kind == agent.LINK:
                    self.files.pop(here, None)
                    self.links[here] = os.fsdecode(content)
                else:
                    self.links.pop(here, None)
                    before = self.files[here] if kind == agent.MORE else b""
                    await self.write(here, before + content, mode=mode)

    async def get_tree(
        self, path: str, target: Path, *, max_bytes: int = 256 * 1024 * 1024, max_files: int = 100_000
    ) -> None:
        self._check_alive()
        place = self._absolute(path)
        if place not in self.directories and not self._below(place):
            raise BoxFileError(f"{path}: No such file or directory")
        await trees.save_tree(self._pieces(place), target, about=path, max_bytes=max_bytes, max_files=max_files)

    async def fork(self, count: int = 1) -> list[Sandbox]:
        self._check_alive()
        if count < 1:
            raise ValueError(f"fork: count must be at least 1, got {count}")
        siblings: list[Sandbox] = []
        for _ in range(count):
            sibling = FakeSandbox(self._spec, self._handler, self._opened)
            sibling.files, sibling.modes = dict(self.files), dict(self.modes)
            sibling.links, sibling.directories = dict(self.links), set(self.directories)
            if self._opened is not None:
                self._opened(sibling)
            siblings.append(sibling)
        return siblings

    async def set_network(self, network: Network) -> None:
        self._check_alive()
        if network and not self._spec.network:
            raise SandboxFailure(f"box {self.id} was opened without a network: name what it may reach in its BoxSpec")
        self.network = network

    async def shell(self) -> FakeShell:
        self._check_alive()
        return FakeShell(self)

    async def close(self) -> None:
        self.kill("it was closed")

    async def _pieces(self, place: str) -> AsyncGenerator[bytes]:
        for piece in agent.pieces(self._records(place, "")):
            yield piece

    def _records(self, place: str, path: str) -> Iterator[agent.Record]:
        for name in self._below(place):
            here = f"{place}/{name}"
            if here in self.links:
                raise agent.TreeError(os.fsencode(path + name), "is a symlink")
            if here in self.files:
                yield agent.FILE, self.modes.get(here, 0o644), 0, os.fsencode(name), self.files[here]
            else:
                yield agent.DIRECTORY, 0o755, 0, os.fsencode(name), b""
                yield from self._records(here, f"{path}{name}/")
        yield agent.END, 0o755, 0, b"", b""

    def _below(self, place: str) -> list[str]:
        """The names in a directory, sorted."""
        everything = self.files.keys() | self.links.keys() | self.directories
        return sorted({at[len(place) + 1 :].split("/")[0] for at in everything if at.startswith(f"{place}/")})

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
        box = FakeSandbox(spec, self._handler, self.boxes.append)
        self.boxes.append(box)
        return box

    async def close(self) -> None:
        for box in self.boxes:
            await box.close()

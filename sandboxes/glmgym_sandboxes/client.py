"""The driver's side of a box with the agent in it: any backend that can start the agent gets a ``Sandbox`` from here.

Owns the connection: requests are numbered, several may be under way at once, and whatever ends the stream turns every
present and future call into ``SandboxDead`` with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult, Network, Sandbox
from glmgym_sandboxes import agent, trees
from glmgym_sandboxes.fork import Opener, Snapshot, open_siblings
from glmgym_sandboxes.gateway import Gateway, proxy_environment, relay_command

logger = logging.getLogger(__name__)

GRACE_S = 10.0  # how much later than a command's own timeout a silent agent is given up
PIECE_BYTES = 4 << 20  # files larger than this travel in several requests
CHUNK_BYTES = 1 << 20
MAX_REQUEST_BYTES = agent.MAX_FRAME_BYTES - (1 << 20)  # the lengths of the fields are part of a frame
_ANSWERS = {  # request -> reply, and how many fields it has
    agent.RUN: (agent.RESULT, 6),
    agent.SHELL: (agent.RESULT, 5),
    agent.CLOSE_SHELL: (agent.DONE, 0),
    agent.READ: (agent.DATA, 1),
    agent.WRITE: (agent.DONE, 0),
    agent.TAKE: (agent.DATA, 1),
    agent.GIVE: (agent.DONE, 0),
    agent.MOVE: (agent.DONE, 0),
}


class Reader(Protocol):
    """What an ``asyncio.StreamReader`` has of this."""

    async def read(self, n: int = -1, /) -> bytes:
        """What has arrived, and waits if that is nothing; empty at the end. Raises ConnectionError."""
        ...


class Shortcut(Protocol):
    """A faster way to an agent that is reached already."""

    @property
    def path(self) -> str:
        """The Unix socket to which the agent can connect."""
        ...

    async def accept(self) -> tuple[Reader, asyncio.StreamWriter]:
        """The connection of the first who did."""
        ...


@dataclass(frozen=True, slots=True)
class Transport:
    """How an agent is reached, and how its box is destroyed: ``destroy`` kills all of it and returns its last words.

    ``snapshot``, for a box whose root is writable, takes a ``Snapshot`` and drops it on leaving; the boxes opened from
    it live on. ``gateway``, for one that may reach something, is what its directory ``gateway.PLACE`` leads to.
    ``shortcut`` is tried once, at the start, and need not work. ``python`` is the command of the box's Python.
    """

    reader: Reader
    writer: asyncio.StreamWriter
    destroy: Callable[[], Awaitable[str]]
    snapshot: Callable[[], AbstractAsyncContextManager[Snapshot[AgentBox]]] | None = None
    gateway: Gateway | None = None
    shortcut: Shortcut | None = None
    python: Sequence[str] = ("python3",)


class AgentBox:
    """A ``Sandbox`` whose main process is the agent.

    ``opener`` opens its siblings when it is forked; more than ``max_siblings`` can never live beside it.
    """

    def __init__(
        self,
        id: str,
        image_digest: str,
        spec: BoxSpec,
        transport: Transport,
        opener: Opener[AgentBox] | None = None,
        max_siblings: int = 0,
    ) -> None:
        self.id = id
        self.image_digest = image_digest
        self.on_close: Callable[[], None] | None = None  # told once, when the box is gone
        self._spec = spec
        self._env = {**proxy_environment(spec.network), **spec.env}
        self._transport = transport
        self._writer = transport.writer
        self._opener = opener
        self._max_siblings = max_siblings
        self._pending: dict[int, asyncio.Future[tuple[int, list[bytes]]]] = {}
        self._numbers = itertools.count(1)
        self._death = ""
        self._destroyed: asyncio.Task[str] | None = None
        self._hello: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
        self._pending[0] = self._hello
        self._serving = [asyncio.create_task(self._serve(), name=f"box {id}")]

    async def ready(self, timeout_s: float) -> None:
        """Wait for the agent's first word, take the shortcut to it, and start the relay to the gateway.

        Raises:
            SandboxDead: the box ended first; the message holds what it said.
            SandboxFailure: nothing came in time, or the relay did not start.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._hello)
        except TimeoutError:
            await self.close()
            raise SandboxFailure(f"box {self.id}: its agent did not start within {timeout_s:g} s") from None
        finally:
            self._pending.pop(0, None)
        if self._transport.shortcut is not None:
            await self._take(self._transport.shortcut)
        if self._transport.gateway is not None:
            relay = await self.run(relay_command(self._spec.network, self._transport.python), timeout_s=timeout_s)
            if relay.exit_code != 0:
                raise SandboxFailure(f"box {self.id}: the relay to its network did not start: {relay.text.strip()}")

    @property
    def is_alive(self) -> bool:
        return not self._death

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        cwd: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        if not argv:
            raise CommandError("run: the command is empty; give a program and its arguments")
        place = cwd or self._spec.cwd
        head = (_text(timeout_s), _text(self._spec.limits.output_bytes), _text(place), stdin, _text(len(argv)))
        fields = (*head, *map(_text, argv), *_pairs({**self._env, **(env or {})}))
        return await self._run(agent.RUN, *fields, timeout_s=timeout_s)

    async def read(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            ask = (
                _text(path),
                _text(max_bytes),
                _text(size),
                _text(min(PIECE_BYTES, max_bytes + 1 - size)),
            )
            (piece,) = await self._request(agent.READ, *ask, about=path)
            parts.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise BoxFileError(f"{path}: has more than the {max_bytes} bytes allowed")
            if len(piece) < PIECE_BYTES:
                return b"".join(parts)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        for offset in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[offset : offset + PIECE_BYTES]
            await self._request(agent.WRITE, _text(path), _text(mode), _text(offset), piece, about=path)

    async def put_tree(self, source: Path, path: str) -> None:
        async with self.receiving(path) as give:
            await trees.pump(trees.read_tree(source), give)

    async def get_tree(
        self, path: str, target: Path, *, max_bytes: int = 256 * 1024 * 1024, max_files: int = 100_000
    ) -> None:
        pieces = self.pieces(path, agent.REGULAR)
        await trees.save_tree(pieces, target, about=path, max_bytes=max_bytes, max_files=max_files)

    async def fork(self, count: int = 1) -> list[Sandbox]:
        """See ``Sandbox``. Files are copied one after the other while commands go on: stop what writes them first.

        Modes, times, symlinks and pipes are kept, sockets left out; hard links become copies. What lies outside the
        working directory and /tmp comes along if the backend can take a snapshot of it. Siblings wait for room like any
        box: several boxes that fork at once, each keeping its own place, need ``max_live`` for all of them.
        """
        if self._opener is not None and count > self._max_siblings:
            raise ValueError(
                f"fork: {count} siblings and the box itself are more than max_live = {self._max_siblings + 1}"
            )
        siblings = await open_siblings(self, self._spec, count, self._opener, self._transport.snapshot)
        return list(siblings)

    def pieces(self, path: str, what: bytes) -> AsyncGenerator[bytes]:
        """The pieces of a directory of the box; see ``agent.read_tree`` for ``what``."""
        return self._pieces(_text(next(self._numbers)), path, what)

    @contextlib.asynccontextmanager
    async def receiving(
        self, path: str, *, empty_first: bool = False
    ) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
        """What takes the pieces of a tree, in order, and makes it ``path``; leaving says that it is whole."""
        key = _text(next(self._numbers))

        async def give(piece: bytes) -> None:
            first = b"1" if empty_first else b"0"
            await self._request(agent.GIVE, key, _text(path), first, piece, about=path)

        try:
            yield give
            await give(b"")
        except BaseException:
            self._post(agent.DROP, key)
            raise

    async def set_network(self, network: Network) -> None:
        if self._death:
            await self._mourn()
        if self._transport.gateway is not None:
            await self._transport.gateway.allow(network)
        elif network:
            raise SandboxFailure(f"box {self.id} was opened without a network: name what it may reach in its BoxSpec")

    async def shell(self) -> AgentShell:
        return AgentShell(self, _text(next(self._numbers)))

    async def close(self) -> None:
        await self._bury("it was closed")
        others = [task for task in self._serving if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def run_in_shell(self, key: bytes, command: str, timeout_s: float) -> CommandResult:
        head = (_text(timeout_s), _text(self._spec.limits.output_bytes), key, _text(self._spec.cwd), _text(command))
        return await self._run(agent.SHELL, *head, *_pairs(self._env), timeout_s=timeout_s)

    async def close_shell(self, key: bytes) -> None:
        with contextlib.suppress(SandboxDead):
            await self._request(agent.CLOSE_SHELL, key)

    async def _run(self, kind: int, *fields: bytes, timeout_s: float) -> CommandResult:
        values = await self._request(kind, *fields, timeout_s=timeout_s)
        try:
            return _result(values)
        except ValueError as error:
            await self._distrust(str(error))

    async def _pieces(self, key: bytes, path: str, what: bytes) -> AsyncGenerator[bytes]:
        try:
            while piece := (await self._request(agent.TAKE, key, _text(path), what, about=path))[0]:
                yield piece
        except BaseException:
            self._post(agent.DROP, key)
            raise

    def _post(self, kind: int, *fields: bytes, number: int = 0) -> None:
        """Say something that has no answer."""
        if not self._death:
            self._writer.write(agent.frame(number, kind, *fields))

    async def _request(self, kind: int, *fields: bytes, timeout_s: float = 30.0, about: str = "") -> list[bytes]:
        """One question and its answer.

        Raises:
            CommandError, BoxFileError: the agent could not do it; the box is fine.
            SandboxDead: the box is gone; or it stayed silent past ``timeout_s + GRACE_S``, or had no room left for a
                process, and was destroyed.
        """
        if self._death:
            await self._mourn()
        if (size := sum(map(len, fields))) > MAX_REQUEST_BYTES:  # files travel in pieces, so this is a command
            raise CommandError(f"box {self.id}: a command and its input of {size} bytes; put the input into a file")
        number = next(self._numbers)
        future: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                with contextlib.suppress(ConnectionError):  # then the reading side ends too, and knows why
                    self._writer.write(agent.frame(number, kind, *fields))
                    await self._writer.drain()
                answer, values = await future
        except TimeoutError:
            await self._bury(f"its agent was silent for {timeout_s + GRACE_S:g} s")
            raise SandboxDead(f"box {self.id} is gone: {self._death}") from None
        except asyncio.CancelledError:
            if kind in (agent.RUN, agent.SHELL):
                self._post(agent.CANCEL, number=number)
            raise
        finally:
            self._pending.pop(number, None)
        if answer == agent.EXHAUSTED:  # as after a fork bomb: the box is full of processes nobody can get rid of
            await self._bury(f"no process can be started in it: {_said(values)}")
            raise SandboxDead(f"box {self.id} is gone: {self._death}")
        if answer == agent.BAD_COMMAND:
            raise CommandError(f"box {self.id}: {_said(values)}")
        if answer == agent.BAD_FILE:
            raise BoxFileError(f"{about}: {_said(values)}")
        if (answer, len(values)) != _ANSWERS[kind]:
            await self._distrust(f"to request {kind} it replied {answer} with {len(values)} fields")
        return values

    async def _distrust(self, said: str) -> NoReturn:
        await self._bury(f"its agent no longer speaks the protocol: {said}")
        raise SandboxDead(f"box {self.id} is gone: {self._death}")

    async def _take(self, shortcut: Shortcut) -> None:
        try:
            await self._request(agent.MOVE, _text(shortcut.path))
        except CommandError as error:  # what it has serves as well, if slower
            logger.info("%s: no socket leads to its agent", error)
            return
        reader, self._writer = await shortcut.accept()
        self._serving.append(asyncio.create_task(self._hear(reader), name=f"shortcut to box {self.id}"))

    async def _serve(self) -> None:
        await self._hear(self._transport.reader)
        await self._bury("its agent ended")

    async def _hear(self, reader: Reader) -> None:
        """Give each reply to whoever waits for it, until the end."""
        incoming = bytearray()
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                incoming += chunk
                for number, kind, values in agent.frames(incoming, agent.MAX_FRAME_BYTES):
                    future = self._pending.get(number)
                    if future is not None and not future.done():
                        future.set_result((kind, values))
        except ConnectionError:
            return
        except ValueError as error:
            await self._bury(f"its agent no longer speaks the protocol: {error}")

    async def _mourn(self) -> NoReturn:
        """Raise SandboxDead, last words and all: they come late."""
        assert self._destroyed is not None
        await asyncio.shield(self._destroyed)
        raise SandboxDead(f"box {self.id} is gone: {self._death}")

    async def _bury(self, reason: str) -> None:
        """Destroy the box once; everybody waiting learns why."""
        if self._destroyed is None:
            self._death = reason
            self._destroyed = asyncio.create_task(self._destroy())
        await asyncio.shield(self._destroyed)

    async def _destroy(self) -> str:
        self._transport.writer.close()
        self._writer.close()
        if self._transport.gateway is not None:
            await self._transport.gateway.close()
        last_words = await self._transport.destroy()
        if last_words:
            self._death += f" ({last_words})"
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SandboxDead(f"box {self.id} is gone: {self._death}"))
                future.exception()  # a hello nobody waits for is not an error of its own
        if self.on_close is not None:
            self.on_close()
        return last_words


class AgentShell:
    """A persistent bash in an ``AgentBox``. Made by the box; bash itself starts with the first command."""

    def __init__(self, box: AgentBox, key: bytes) -> None:
        self._box = box
        self._key = key

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        return await self._box.run_in_shell(self._key, command, timeout_s)

    async def close(self) -> None:
        await self._box.close_shell(self._key)


def _result(values: list[bytes]) -> CommandResult:
    exit_code, timed_out, dropped, wall_s = values[:4]
    stdout, stderr = values[4], values[5] if len(values) > 5 else b""  # a shell merges the two
    return CommandResult(int(exit_code), stdout, stderr, timed_out == b"1", int(dropped), float(wall_s))


def _said(values: list[bytes]) -> str:
    return b" ".join(values).decode("utf-8", "replace")


def _text(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogateescape")


def _pairs(env: Mapping[str, str]) -> list[bytes]:
    return [_text(f"{key}={value}") for key, value in env.items()]

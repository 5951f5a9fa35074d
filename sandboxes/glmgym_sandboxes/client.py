"""The driver's side of a box with the agent in it: any backend that can start the agent gets a ``Sandbox`` from here.

Owns the connection: requests are numbered, several may be under way at once, and whatever ends the stream turns every
present and future call into ``SandboxDead`` with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult
from glmgym_sandboxes import agent

logger = logging.getLogger(__name__)

GRACE_S = 10.0  # how much later than a command's own timeout a silent agent is given up
PIECE_BYTES = 4 << 20  # files larger than this travel in several requests
MAX_FRAME_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Transport:
    """How an agent is reached, and how its box is destroyed: ``destroy`` kills all of it and returns its last words."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    destroy: Callable[[], Awaitable[str]]


class AgentBox:
    """A ``Sandbox`` whose main process is the agent."""

    def __init__(self, id: str, image_digest: str, spec: BoxSpec, transport: Transport) -> None:
        self.id = id
        self.image_digest = image_digest
        self.on_close: Callable[[], None] | None = None  # told once, when the box is gone
        self._spec = spec
        self._transport = transport
        self._pending: dict[int, asyncio.Future[tuple[int, list[bytes]]]] = {}
        self._numbers = itertools.count(1)
        self._death = ""
        self._destroyed: asyncio.Task[str] | None = None
        self._hello: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
        self._pending[0] = self._hello
        self._serving = asyncio.create_task(self._serve(), name=f"box {id}")

    async def ready(self, timeout_s: float) -> None:
        """Wait for the agent's first word.

        Raises:
            SandboxDead: the box ended first; the message holds what it said.
            SandboxFailure: nothing came in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._hello)
        except TimeoutError:
            await self.close()
            raise SandboxFailure(f"box {self.id}: its agent did not start within {timeout_s:g} s") from None
        finally:
            self._pending.pop(0, None)

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
        fields = (*head, *map(_text, argv), *_pairs({**self._spec.env, **(env or {})}))
        return _result(await self._request(agent.RUN, *fields, timeout_s=timeout_s))

    async def read(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        parts = bytearray()
        while True:
            ask = (
                _text(path),
                _text(max_bytes),
                _text(len(parts)),
                _text(min(PIECE_BYTES, max_bytes + 1 - len(parts))),
            )
            (piece,) = await self._request(agent.READ, *ask, about=path)
            parts += piece
            if len(parts) > max_bytes:
                raise BoxFileError(f"{path}: has more than the {max_bytes} bytes allowed")
            if len(piece) < PIECE_BYTES:
                return bytes(parts)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        for offset in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[offset : offset + PIECE_BYTES]
            await self._request(agent.WRITE, _text(path), _text(mode), _text(offset), piece, about=path)

    async def shell(self) -> AgentShell:
        return AgentShell(self, _text(next(self._numbers)))

    async def close(self) -> None:
        await self._bury("it was closed")
        if self._serving is not asyncio.current_task():
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    async def run_in_shell(self, key: bytes, command: str, timeout_s: float) -> CommandResult:
        head = (_text(timeout_s), _text(self._spec.limits.output_bytes), key, _text(self._spec.cwd), _text(command))
        return _result(await self._request(agent.SHELL, *head, *_pairs(self._spec.env), timeout_s=timeout_s))

    async def close_shell(self, key: bytes) -> None:
        with contextlib.suppress(SandboxDead):
            await self._request(agent.CLOSE_SHELL, key)

    async def _request(self, kind: int, *fields: bytes, timeout_s: float = 30.0, about: str = "") -> list[bytes]:
        """One question and its answer.

        Raises:
            CommandError, BoxFileError: the agent could not do it; the box is fine.
            SandboxDead: the box is gone; or it stayed silent past ``timeout_s + GRACE_S``, or had no room left for a
                process, and was destroyed.
        """
        if self._death:
            raise SandboxDead(f"box {self.id} is gone: {self._death}")
        number = next(self._numbers)
        future: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                with contextlib.suppress(ConnectionError):  # then the reading side ends too, and knows why
                    self._transport.writer.write(agent.frame(number, kind, agent.pack(*fields)))
                    await self._transport.writer.drain()
                answer, values = await future
        except TimeoutError:
            await self._bury(f"its agent was silent for {timeout_s + GRACE_S:g} s")
            raise SandboxDead(f"box {self.id} is gone: {self._death}") from None
        except asyncio.CancelledError:
            if not self._death and kind in (agent.RUN, agent.SHELL):
                self._transport.writer.write(agent.frame(number, agent.CANCEL, b""))
            raise
        finally:
            self._pending.pop(number, None)
        if answer == agent.EXHAUSTED:  # as after a fork bomb: the box is full of processes nobody can get rid of
            await self._bury(f"no process can be started in it: {values[0].decode()}")
            raise SandboxDead(f"box {self.id} is gone: {self._death}")
        if answer == agent.BAD_COMMAND:
            raise CommandError(f"box {self.id}: {values[0].decode()}")
        if answer == agent.BAD_FILE:
            raise BoxFileError(f"{about}: {values[0].decode()}")
        return values

    async def _serve(self) -> None:
        reader = self._transport.reader
        reason = "its agent ended"
        try:
            while True:
                header = await reader.readexactly(agent.HEADER_BYTES)
                length, number, kind = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big"), header[8]
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {length} bytes")
                values = agent.unpack(await reader.readexactly(length))
                future = self._pending.get(number)
                if future is not None and not future.done():
                    future.set_result((kind, values))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except ValueError as error:
            reason = f"its agent no longer speaks the protocol: {error}"
        await self._bury(reason)

    async def _bury(self, reason: str) -> None:
        """Destroy the box once; everybody waiting learns why."""
        if self._destroyed is None:
            self._death = reason
            self._destroyed = asyncio.create_task(self._destroy())
        await asyncio.shield(self._destroyed)

    async def _destroy(self) -> str:
        self._transport.writer.close()
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


def _text(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogateescape")


def _pairs(env: Mapping[str, str]) -> list[bytes]:
    return [_text(f"{key}={value}") for key, value in env.items()]

"""Warm boxes: a provider that keeps a few started ones per specification, so that opening one rarely waits.

A box is handed out once and destroyed afterwards, never reset: nothing can leak between two users, by construction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from glmgym.errors import SandboxFailure
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.client import AgentBox

logger = logging.getLogger(__name__)

Key = tuple[object, ...]


class WarmPool:
    """Opens boxes through ``start``.

    Args:
        start: starts one box, from nothing; raises SandboxFailure.
        warm: started boxes kept per specification that was asked for.
        max_live: boxes that exist at once, warm ones included; further ``open`` calls wait in order of arrival.
        max_starting: starts under way at once. Starting costs CPU, being alive costs memory: two separate limits.
    """

    def __init__(
        self, start: Callable[[BoxSpec], Awaitable[AgentBox]], *, warm: int, max_live: int, max_starting: int
    ) -> None:
        self._start = start
        self._warm = warm
        self._max_live = max_live
        self._live = 0  # started and starting ones
        self._starting = asyncio.Semaphore(max_starting)
        self._turn = asyncio.Lock()  # held by whoever waited longest, so that nobody overtakes
        self._changed = asyncio.Event()  # a box ended or became ready
        self._ready: dict[Key, deque[AgentBox]] = {}
        self._refills: dict[Key, asyncio.Task[None]] = {}
        self._boxes: set[AgentBox] = set()
        self._closed = False

    async def open(self, spec: BoxSpec, *, keep_warm: bool = True) -> AgentBox:
        """A box nobody has used: a warm one, or else a new one. ``keep_warm``: more of its kind will be asked for.

        Raises:
            SandboxFailure: it could not be started, or the pool is closed.
        """
        key = _key(spec)
        async with self._turn:
            box = await self._take_or_reserve(key)
        if box is None:
            box = await self._start_reserved(spec)
        if keep_warm and key not in self._refills and self._warm:
            self._refills[key] = asyncio.create_task(self._refill(key, spec), name="warm boxes")
        return box

    async def close(self) -> None:
        """Stop refilling, refuse whoever waits, and destroy every box, warm or in use."""
        self._closed = True
        self._changed.set()
        for task in (refills := list(self._refills.values())):
            task.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        await asyncio.gather(*(box.close() for box in list(self._boxes)))

    async def _take_or_reserve(self, key: Key) -> AgentBox | None:
        """A warm box, or ``None`` and the right to start one; waits until there is either."""
        while True:
            if self._closed:
                raise SandboxFailure("the sandbox provider is closed")
            ready = self._ready.get(key, deque())
            while ready:
                box = ready.popleft()
                if box.is_alive:
                    return box
            if self._live < self._max_live:
                self._live += 1
                return None
            other = next((boxes for boxes in self._ready.values() if boxes), None)
            if other is not None:  # a warm box of another kind gives way to somebody waiting
                await other.popleft().close()
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _start_reserved(self, spec: BoxSpec) -> AgentBox:
        try:
            async with self._starting:
                box = await self._start(spec)
        except BaseException:
            self._release()
            raise
        if not box.is_alive:  # ended between its first word and now: its first user will hear why
            self._release()
            return box
        self._boxes.add(box)
        box.on_close = lambda: self._forget(box)
        if self._closed:
            await box.close()
        return box

    def _forget(self, box: AgentBox) -> None:
        self._boxes.discard(box)
        self._release()

    def _release(self) -> None:
        self._live -= 1
        self._changed.set()

    async def _refill(self, key: Key, spec: BoxSpec) -> None:
        ready = self._ready.setdefault(key, deque())
        try:
            # Never while somebody waits for room, who comes first; a later open tries again.
            while len(ready) < self._warm and self._live < self._max_live and not self._turn.locked():
                self._live += 1
                box = await self._start_reserved(spec)
                with contextlib.suppress(SandboxFailure):  # a dead one is passed over when its turn comes
                    await box.run(["true"])  # a box's first command takes longer than all later ones
                ready.append(box)
                self._changed.set()
        except SandboxFailure as failure:
            logger.warning("no warm box: %s", failure)
        finally:
            del self._refills[key]


def _key(spec: BoxSpec) -> Key:
    env = tuple(sorted(spec.env.items()))
    return (spec.image, spec.cwd, env, spec.limits, spec.user, spec.writable_root, spec.network)

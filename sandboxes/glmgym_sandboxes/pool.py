"""Warm boxes: a provider that keeps a few started ones per specification, so that opening one rarely waits.

A box is handed out once and destroyed afterwards, never reset: nothing can leak between two users, by construction.
"""

from __future__ import annotations

import asyncio
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
        self._live = asyncio.Semaphore(max_live)  # first come, first served
        self._starting = asyncio.Semaphore(max_starting)
        self._ready: dict[Key, deque[AgentBox]] = {}
        self._refills: dict[Key, asyncio.Task[None]] = {}
        self._boxes: set[AgentBox] = set()
        self._closed = False

    async def open(self, spec: BoxSpec) -> AgentBox:
        """A box nobody has used: a warm one, or else a new one.

        Raises:
            SandboxFailure: it could not be started, or the pool is closed.
        """
        key = _key(spec)
        box = self._take(key)
        if box is None:
            if self._live.locked():
                await self._evict_one()
            box = await self._start_one(spec)
        if key not in self._refills and self._warm:
            self._refills[key] = asyncio.create_task(self._refill(key, spec), name="warm boxes")
        return box

    async def close(self) -> None:
        """Stop refilling and destroy every box, warm or in use."""
        self._closed = True
        for task in (refills := list(self._refills.values())):
            task.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        await asyncio.gather(*(box.close() for box in list(self._boxes)))

    def _take(self, key: Key) -> AgentBox | None:
        ready = self._ready.get(key, deque())
        while ready:
            box = ready.popleft()
            if box.is_alive:
                return box
        return None

    async def _start_one(self, spec: BoxSpec) -> AgentBox:
        await self._live.acquire()
        try:
            if self._closed:
                raise SandboxFailure("the sandbox provider is closed")
            async with self._starting:
                box = await self._start(spec)
        except BaseException:
            self._live.release()
            raise
        self._boxes.add(box)

        def forget() -> None:
            self._boxes.discard(box)
            self._live.release()

        if box.is_alive:
            box.on_close = forget
        else:
            forget()
        return box

    async def _evict_one(self) -> None:
        """Make room: a warm box of another specification gives way to a person waiting."""
        for ready in self._ready.values():
            if ready:
                await ready.popleft().close()
                return

    async def _refill(self, key: Key, spec: BoxSpec) -> None:
        ready = self._ready.setdefault(key, deque())
        try:
            # Never waits for room: whoever waits to use a box comes first, and a later open tries again.
            while len(ready) < self._warm and not self._live.locked():
                ready.append(await self._start_one(spec))
        except SandboxFailure as failure:
            logger.warning("no warm box: %s", failure)
        finally:
            del self._refills[key]


def _key(spec: BoxSpec) -> Key:
    return (spec.image, spec.cwd, tuple(sorted(spec.env.items())), spec.limits)

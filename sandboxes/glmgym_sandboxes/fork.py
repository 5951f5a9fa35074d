"""Siblings of a running box: opened like it, then given its files, from box to boxes without touching a disk."""

from __future__ import annotations

import asyncio
import contextlib
import os.path
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from glmgym.errors import SandboxFailure
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes import agent, trees


class Forkable(Protocol):
    """A box whose files can be given to others piece by piece."""

    id: str

    def pieces(self, path: str, what: bytes) -> AsyncGenerator[bytes]:
        """The pieces of a directory of the box; see ``agent.read_tree`` for ``what``."""
        ...

    def receiving(
        self, path: str, *, empty_first: bool = False
    ) -> AbstractAsyncContextManager[Callable[[bytes], Awaitable[None]]]:
        """What takes the pieces of a tree, in order, and makes it ``path``; leaving says that it is whole."""
        ...

    async def close(self) -> None: ...


Box = TypeVar("Box", bound=Forkable)
Opener = Callable[[BoxSpec], Awaitable[Box]]


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[Box]):
    """A box's root as it was at one moment: ``open`` starts boxes from it.

    ``left_out`` names the writable places it does not hold, memory file systems for one; fork copies these itself.
    """

    open: Opener[Box]
    left_out: tuple[str, ...]


async def open_siblings(
    box: Forkable,
    spec: BoxSpec,
    count: int,
    opener: Opener[Box] | None,
    snapshot: Callable[[], AbstractAsyncContextManager[Snapshot[Box]]] | None,
) -> list[Box]:
    """``count`` boxes of ``spec`` with the files of ``box``; from its snapshot where there is one.

    Raises:
        SandboxFailure: one could not be opened or filled, or the backend cannot fork; none is left then.
    """
    if count < 1:
        raise ValueError(f"fork: count must be at least 1, got {count}")
    if opener is None:
        raise SandboxFailure(f"box {box.id} cannot be forked: its backend opens no siblings")
    if spec.writable_root and snapshot is None:
        raise SandboxFailure(f"box {box.id} cannot be forked: its backend takes no snapshot of a writable root")
    async with contextlib.AsyncExitStack() as leaving:
        places = writable_places(spec)
        if snapshot is not None:
            taken = await leaving.enter_async_context(snapshot())
            opener, places = taken.open, taken.left_out
        siblings = await _open_all(count, opener, spec)
        try:
            for place in places:
                await _copy(box, siblings, place)
        except BaseException:
            await asyncio.gather(*(sibling.close() for sibling in siblings))
            raise
        return siblings


def writable_places(spec: BoxSpec) -> tuple[str, ...]:
    """Where a box with a read-only root may write, none inside another."""
    cwd = os.path.normpath(spec.cwd)
    return ("/tmp",) if os.path.commonpath([cwd, "/tmp"]) == "/tmp" else (cwd, "/tmp")


async def _open_all(count: int, opener: Opener[Box], spec: BoxSpec) -> list[Box]:
    """All of them or, after a failure or a cancellation, none."""
    opening = [asyncio.ensure_future(opener(spec)) for _ in range(count)]
    try:
        return await asyncio.gather(*opening)
    except BaseException:
        for task in opening:
            task.cancel()
        ended = await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(box.close() for box in ended if not isinstance(box, BaseException)))
        raise


async def _copy(box: Forkable, siblings: Sequence[Forkable], place: str) -> None:
    async with contextlib.AsyncExitStack() as leaving:
        receivers = [
            await leaving.enter_async_context(sibling.receiving(place, empty_first=True)) for sibling in siblings
        ]

        async def give_all(piece: bytes) -> None:
            await asyncio.gather(*(give(piece) for give in receivers))

        await trees.pump(box.pieces(place, agent.ALL), give_all)

"""Blocking work off the event loop, waited for to its end whatever happens to the one who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(
    work: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None, **named: Any
) -> T:
    """As ``asyncio.to_thread``, but cancelled it still waits for the thread: what comes next may rely on its end.

    Args:
        undo: called in a thread, when cancelled, with what ``work`` made: nobody else will ever own it.
    """
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.exception() is None and undo is not None:
            await asyncio.to_thread(undo, task.result())
        raise

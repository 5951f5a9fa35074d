"""Blocking work that is cancelled: it is awaited to its end, and undone where somebody says how."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from glmgym.threads import in_thread


async def cancel(work: Callable[[], object], undo: Callable[[object], object] | None = None) -> None:
    """Cancel ``in_thread`` once its thread runs; ``work`` goes on for 50 ms after that."""
    runs = threading.Event()

    def slow() -> object:
        runs.set()
        threading.Event().wait(0.05)
        return work()

    task = asyncio.create_task(in_thread(slow, undo=undo))
    await asyncio.to_thread(runs.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_gives_what_the_work_gives_and_raises_what_it_raises() -> None:
    assert await in_thread(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_cancelled_it_ends_after_the_work() -> None:
    done: list[int] = []
    await cancel(lambda: done.append(1))
    assert done == [1]


async def test_cancelled_it_undoes_what_was_made() -> None:
    undone: list[object] = []
    await cancel(lambda: "made", undone.append)
    assert undone == ["made"]


async def test_work_that_fails_while_it_is_cancelled_has_nothing_to_undo(caplog: pytest.LogCaptureFixture) -> None:
    undone: list[object] = []
    await cancel(lambda: 1 / 0, undone.append)
    assert undone == []
    assert caplog.text == "", "nobody waited for the error"

"""The half of the sandbox benchmark that runs in a contender's own interpreter; only the standard library is imported.

A contender is a class like ``Contender`` in a file of its own that ends with ``serve(...)``. It answers requests, one
JSON object a line, on stdin and on a descriptor of their own, since a contender may print what it likes. Times are
taken here, around the contender's own calls, so that the pipes are not measured.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TextIO

REPLIES_FD, LABEL = "BENCH_REPLIES_FD", "BENCH_LABEL"  # environment variables
MEGABYTE = b"0123456789abcde\n" * 65536  # text, as one peer's files are
FLOOD = ["sh", "-c", "yes 0123456789abcde | head -c 20000000"]
TRUE = ["true"]


class Contender(Protocol):
    """One way to have boxes. A blocking interface is called through ``asyncio.to_thread``."""

    async def open(self) -> Any:
        """A new box, not from a pool, ready to run commands."""
        ...

    async def run(self, box: Any, argv: Sequence[str], timeout_s: float = 30.0) -> bytes | str:
        """What the command wrote to stdout, in the type the contender gives. Output up to a timeout may be lost."""
        ...

    async def write_and_read(self, box: Any, data: bytes) -> bytes:
        """A file of the box written, then read."""
        ...

    async def close(self, box: Any) -> None: ...

    def places(self, box: Any) -> list[str]:
        """Files and directories of this machine that exist for this box."""
        ...


class Pooled(Contender, Protocol):
    """A contender with warm boxes and persistent shells."""

    async def open_warm(self) -> Any: ...

    async def run_in_shell(self, box: Any, command: str) -> None: ...

    async def close_pool(self) -> None: ...


class Driver:
    """The requests: each public coroutine is one, by its name."""

    def __init__(self, contender: Any) -> None:
        self._contender: Pooled = contender
        self._live: Any = None
        self._fleet: list[Any] = []

    async def open(self) -> list[str]:
        """Open the box that ``command``, ``files``, ``run`` and ``flood`` use."""
        self._live = await self._contender.open()
        await self._contender.run(self._live, TRUE)
        return self._contender.places(self._live)

    async def command(self) -> float:
        return await timed(lambda: self._contender.run(self._live, TRUE))

    async def shell_command(self) -> float:
        return await timed(lambda: self._contender.run_in_shell(self._live, "true"))

    async def files(self) -> float:
        began = time.perf_counter()
        data = await self._contender.write_and_read(self._live, MEGABYTE)
        took = time.perf_counter() - began
        if data != MEGABYTE:
            raise AssertionError("the file came back different")
        return took

    async def cold(self) -> float:
        """From no box to the end of its first command."""
        return await self._first_command(self._contender.open)

    async def warm(self, pause_s: float) -> list[float]:
        """Seconds to acquire a warm box, and to the end of its first command, when the pool had ``pause_s`` to refill.

        An episode is longer than that: the refill is not what is measured.
        """
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        acquired = began

        async def acquire() -> Any:
            nonlocal acquired
            box = await self._contender.open_warm()
            acquired = time.perf_counter()
            return box

        took = await self._first_command(acquire)
        return [acquired - began, took]

    async def fleet(self, boxes: int) -> float:
        """Open ``boxes`` boxes; the memory this process has grown by, in KiB a box."""
        before = memory_kib("VmRSS")
        self._fleet = list(await asyncio.gather(*(self._contender.open() for _ in range(boxes))))
        await asyncio.gather(*(self._contender.run(box, TRUE) for box in self._fleet))
        return (memory_kib("VmRSS") - before) / boxes

    async def slice(self, commands: int) -> float:
        """Seconds for ``commands`` commands, one after the other, in every box of the fleet at once."""

        async def some(box: Any) -> None:
            for _ in range(commands):
                await self._contender.run(box, TRUE)

        return await timed(lambda: asyncio.gather(*(some(box) for box in self._fleet)))

    async def disband(self) -> None:
        await asyncio.gather(*(self._contender.close(box) for box in self._fleet))
        self._fleet = []

    async def run(self, argv: list[str], timeout_s: float = 30.0) -> dict[str, Any]:
        began = time.perf_counter()
        output = await self._contender.run(self._live, argv, timeout_s)
        took = time.perf_counter() - began
        if isinstance(output, bytes):
            return {"s": took, "bytes": base64.b64encode(output).decode()}
        return {"s": took, "text": output}

    async def flood(self) -> float:
        """MB this process grows by, at its peak, while a command writes 20 MB."""
        before = reset_peak_kib()
        if not await self._contender.run(self._live, FLOOD, 60.0):
            raise AssertionError("nothing of 20 MB arrived")
        return max(0, memory_kib("VmHWM") - before) * 1024 / 1e6

    async def cpu(self) -> float:
        """Seconds of processor time of this process and of its children that ended."""
        usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    async def close(self) -> None:
        await self.disband()
        if self._live is not None:
            await self._contender.close(self._live)
            self._live = None
        if hasattr(self._contender, "close_pool"):
            await self._contender.close_pool()

    async def _first_command(self, acquire: Callable[[], Awaitable[Any]]) -> float:
        began = time.perf_counter()
        box = await acquire()
        await self._contender.run(box, TRUE)
        took = time.perf_counter() - began
        await self._contender.close(box)
        return took


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


def memory_kib(field: str) -> int:
    """``VmRSS``, or ``VmHWM``, the most it has been."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"no {field} in /proc/self/status")


def label() -> str:
    """``name=value``, to put on every container, so that the benchmark can remove what a contender leaves behind."""
    return os.environ[LABEL]


def run_options() -> list[str]:
    """Options of ``docker run`` that make the box of a peer, which sets none itself, like one of ours."""
    limits = ["--pids-limit", "128", "--memory", "512m", "--memory-swap", "512m", "--cpus", "1"]
    return ["--init", "--label", label(), *limits, "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]


def reset_peak_kib() -> int:
    """Let ``VmHWM`` start again from what it is now, which is returned."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_kib("VmHWM")


def serve(make: Callable[[], Contender]) -> None:
    """Answer requests until stdin ends, then close what is open."""
    with os.fdopen(int(os.environ[REPLIES_FD]), "w", buffering=1) as replies:
        asyncio.run(_serve(make, replies))


async def _serve(make: Callable[[], Contender], replies: TextIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(
        ThreadPoolExecutor(64)
    )  # as many as there may be boxes: a blocking contender waits in one
    driver: Driver | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        try:
            driver = driver or Driver(make())
            reply = {"value": await getattr(driver, request.pop("request"))(**request)}
        except Exception as error:  # noqa: BLE001 - the other side reports it, as an object in the results
            reply = {"error": {"type": type(error).__name__, "message": str(error)}}
        replies.write(json.dumps(reply) + "\n")
    if driver is not None:
        with contextlib.suppress(Exception):  # the contender is being ended anyway
            await driver.close()

"""Many live containers of ours at once: no error, caps kept, and what one costs this process.

A quarter more boxes are asked for than may live, so that the cap is reached. The engine's own events are the witness:
a container lives from ``create`` to ``destroy`` and is starting until ``start``.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from typing import Any

from report import Direction
from sandbox_driver import memory_kib
from sandbox_peers import ContenderError

from glmgym.errors import SandboxFailure
from glmgym.owner import Owner
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym_sandboxes.docker import open_provider

STARTING = 2 * (os.cpu_count() or 1)

TARGETS: dict[str, tuple[float, Direction]] = {
    "live_errors": (0, "max"),
    "live_reached_share_of_cap": (1.0, "min"),
    "live_peak_share_of_cap": (1.0, "max"),
    "starting_peak_share_of_cap": (1.0, "max"),
    "containers_left": (0, "max"),
}


class Crowd:
    """A quarter more episodes than may live: open, a command, wait until the cap is reached, a command, close."""

    def __init__(self, cap: int, image: str) -> None:
        self.errors: list[str] = []
        self.opened_s: list[float] = []
        self.command_s: list[float] = []
        self.kib_per_box = 0.0
        self._cap, self._wanted, self._spec = cap, cap + max(1, cap // 4), BoxSpec(image=image)
        self._live = 0
        self._full = asyncio.Event()
        self._provider = open_provider({"warm": 0, "max_live": cap, "max_starting": STARTING})

    async def run(self) -> None:
        first = await self._provider.open(self._spec)  # loads what the first box needs, once
        await first.close()
        before = memory_kib("VmRSS")
        episodes = [asyncio.create_task(self._episode()) for _ in range(self._wanted)]
        await self._full.wait()
        self.kib_per_box = (memory_kib("VmRSS") - before) / self._cap
        await asyncio.gather(*episodes)

    async def close(self) -> None:
        await self._provider.close()

    async def _episode(self) -> None:
        began = time.perf_counter()
        try:
            box = await self._provider.open(self._spec)
            self.opened_s.append(time.perf_counter() - began)
            await self._command(box)
            self._live += 1
            self._note_full()
            await self._full.wait()
            await self._command(box)
            await box.close()
        except SandboxFailure as failure:
            self.errors.append(str(failure))
            self._note_full()

    def _note_full(self) -> None:
        """As many live as may, or all that did not fail."""
        if self._live == self._cap or self._live + len(self.errors) >= self._wanted:
            self._full.set()

    async def _command(self, box: Sandbox) -> None:
        began = time.perf_counter()
        if (result := await box.run(["echo", box.id])).stdout.strip() != box.id.encode():
            self.errors.append(f"box {box.id}: {result}")
        self.command_s.append(time.perf_counter() - began)


def measure(cap: int, image: str) -> dict[str, Any]:
    """Raises ContenderError: not even the first box could be opened."""
    owner = f"label=glmgym.owner={Owner.current()}"
    argv = ["docker", "events", "--filter", owner, "--filter", "type=container", "--format", "{{json .}}"]
    # To a file: nobody reads a pipe while the crowd is at it, and what does not fit into one would be lost.
    with tempfile.TemporaryFile("w+") as heard, subprocess.Popen(argv, stdout=heard) as events:
        try:
            time.sleep(1.0)  # until it listens
            began = time.perf_counter()
            crowd = asyncio.run(crowded(cap, image))
            took = time.perf_counter() - began
            time.sleep(1.0)
        except SandboxFailure as failure:
            raise ContenderError(str(failure), type(failure).__name__) from failure
        finally:
            events.terminate()
            events.wait()
        heard.seek(0)
        peak_live, peak_starting = peaks([json.loads(line) for line in heard])
    left = subprocess.run(["docker", "ps", "-aq", "--filter", owner], capture_output=True, text=True, check=True)
    return {
        "image": image,
        "max_live": cap,
        "max_starting": STARTING,
        "episodes": len(crowd.opened_s),
        "wall_s": took,
        "live_errors": len(crowd.errors),
        "first_errors": crowd.errors[:3],
        "live_peak": peak_live,
        "live_reached_share_of_cap": peak_live / cap,
        "live_peak_share_of_cap": peak_live / cap,
        "starting_peak": peak_starting,
        "starting_peak_share_of_cap": peak_starting / STARTING,
        "command_ms": statistics.median(crowd.command_s) * 1e3 if crowd.command_s else None,
        "client_kib_per_box": crowd.kib_per_box,
        "containers_left": len(left.stdout.split()),
    }


async def crowded(cap: int, image: str) -> Crowd:
    crowd = Crowd(cap, image)
    try:
        await crowd.run()
    finally:
        await crowd.close()
    return crowd


def peaks(events: list[dict[str, Any]]) -> tuple[int, int]:
    """The most containers that lived, and that were starting, at once."""
    live: set[str] = set()
    starting: set[str] = set()
    most_live = most_starting = 0
    for event in sorted(events, key=lambda event: event["timeNano"]):
        container = event["id"]
        match event["status"]:
            case "create":
                live.add(container)
                starting.add(container)
            case "start":
                starting.discard(container)
            case "destroy":
                live.discard(container)
                starting.discard(container)
        most_live, most_starting = max(most_live, len(live)), max(most_starting, len(starting))
    return most_live, most_starting

"""Bubblewrap boxes: cold start, commands in a live box, warm acquire, files, throughput, and CPU per box.

Run ``python benchmarks/sandbox.py [--json] [--samples N]``. Medians; CPU is user plus system time of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from report import Direction, report

from glmgym.sandbox import BoxSpec, Sandbox
from glmgym_sandboxes.bubblewrap import open_provider

TARGETS: dict[str, tuple[float, Direction]] = {
    "cold_start_to_first_command_ms": (150.0, "max"),
    "command_in_live_box_ms": (5.0, "max"),
    "warm_acquire_ms": (20.0, "max"),
}


async def median_ms(samples: int, action: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(samples):
        began = time.perf_counter()
        await action()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


async def cold(samples: int, measured: dict[str, float]) -> None:
    provider = open_provider({"warm": 0})

    async def start_and_run() -> None:
        box = await provider.open(BoxSpec())
        await box.run(["true"])
        boxes.append(box)

    boxes: list[Sandbox] = []
    await start_and_run()  # compiles the agent, once per provider
    before = cpu_s()
    measured["cold_start_to_first_command_ms"] = await median_ms(samples, start_and_run)
    close_began = time.perf_counter()
    await asyncio.gather(*(box.close() for box in boxes))
    measured["close_ms"] = (time.perf_counter() - close_began) / len(boxes) * 1e3
    # The first box's end is counted too; its start is not: at most 1/samples of the figure.
    measured["cpu_ms_per_box"] = (cpu_s() - before) / samples * 1e3
    await provider.close()


async def live(samples: int, measured: dict[str, float]) -> None:
    provider = open_provider({"warm": 0})
    box = await provider.open(BoxSpec())
    shell = await box.shell()
    data = bytes(range(256)) * 4096

    async def command() -> None:
        await box.run(["true"])

    async def shell_command() -> None:
        await shell.run("true")

    async def write_and_read() -> None:
        await box.write("/work/blob", data)
        if await box.read("/work/blob") != data:
            raise AssertionError("the file came back different")

    await shell_command()
    measured["command_in_live_box_ms"] = await median_ms(samples * 3, command)
    measured["command_in_shell_ms"] = await median_ms(samples * 3, shell_command)
    measured["write_and_read_1_mb_ms"] = await median_ms(samples, write_and_read)
    await provider.close()


async def warm(samples: int, measured: dict[str, float]) -> None:
    provider = open_provider({"warm": 4})
    spec = BoxSpec()
    await (await provider.open(spec)).close()
    times = []
    for _ in range(samples):
        await asyncio.sleep(0.15)  # an episode is longer than that: the refill is not what is measured
        began = time.perf_counter()
        box = await provider.open(spec)
        times.append(time.perf_counter() - began)
        await box.run(["true"])
        await box.close()
    measured["warm_acquire_ms"] = statistics.median(times) * 1e3
    await provider.close()


async def many(measured: dict[str, float]) -> None:
    provider = open_provider({"warm": 0})
    boxes = await asyncio.gather(*(provider.open(BoxSpec()) for _ in range(16)))

    async def twenty(index: int) -> None:
        for _ in range(20):
            await boxes[index].run(["true"])

    began = time.perf_counter()
    await asyncio.gather(*(twenty(index) for index in range(16)))
    measured["commands_per_s_16_boxes_x_20"] = 320 / (time.perf_counter() - began)
    await provider.close()


def cpu_s() -> float:
    """User and system time of this process and of its children that ended."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def measure(samples: int) -> dict[str, float]:
    measured: dict[str, float] = {"samples": samples}
    await cold(samples, measured)
    await live(samples, measured)
    await warm(samples, measured)
    await many(measured)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--samples", type=int, default=40, help="at least 30")
    options = parser.parse_args()
    return report(asyncio.run(measure(max(30, options.samples))), TARGETS, options.json)


if __name__ == "__main__":
    sys.exit(main())

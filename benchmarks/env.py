"""Environments under a scripted policy: steps per second, what the framework adds to a turn, and a free event loop.

A turn's overhead is the time of its step less that spent inside the tool's own function (the command in the box, the
page, the index): checking arguments, the guard, budgets, clipping, bookkeeping. The policy is the environment's oracle,
whose own time is not counted. The browser's steps are held against the 0.5 s that BrowserGym waits before each
observation (``pre_observation_delay``).

    python benchmarks/env.py [--json] [--tasks N] [--live N] [--only FAMILY ...]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from report import Direction, report

from glmgym.errors import ConfigError, UnknownName
from glmgym.evaluation.player import MessagePlayer
from glmgym.evaluation.scripted import scripted_policy
from glmgym.registry import EnvSpec, environment, load_component
from glmgym.rollout import Budget, Job, Transcript
from glmgym.sandbox import SandboxProvider

FAMILIES = {
    "swe": "swe-mini",
    "terminal": "terminal-mini",
    "search": "search-mini",
    "browser": "miniwob",
    "shop": "shop",
}
CROWD = "terminal-basics"  # what the many at once play
TICK_S = 0.005
BROWSERGYM_DELAY_MS = 500.0

TARGETS: dict[str, tuple[float, Direction]] = {
    **{f"{family}_overhead_ms_per_turn": (1.0, "max") for family in FAMILIES},
    **{f"{family}_solved_share": (1.0, "min") for family in FAMILIES},
    "browser_step_over_browsergym_delay": (0.5, "max"),
    "crowd_lag_p99_ms": (50.0, "max"),
    "crowd_failures": (0, "max"),
}


class Clock:
    """Seconds spent inside tools, and how many calls that were."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*arguments, **named)
            finally:
                self.seconds.append(time.perf_counter() - began)

        return timed


def clocked(spec: EnvSpec, clock: Clock) -> EnvSpec:
    """The same environment with its tools on the clock."""

    def make() -> Any:
        env: Any = spec.make()
        env.tools = tuple(replace(tool, function=clock.around(tool.function)) for tool in env.tools)
        return env

    return replace(spec, make=make)


async def family(name: str, suite: str, tasks: int) -> dict[str, Any]:
    """One task after the other.

    Raises:
        ConfigError: the environment is not there, or lacks what it needs.
    """
    clock = Clock()
    spec = clocked(environment(suite), clock)
    provider = open_provider(spec)
    player = MessagePlayer(scripted_policy("scripted:expert"), provider, Budget(wall_s=600, score_s=600))
    transcripts = []
    try:
        for index in range(min(tasks, spec.tasks.size("heldout"))):
            task = spec.tasks.task("heldout", index)
            transcripts.append((await player.play(Job(f"{name}-{index}", task, spec, seed=index)))[1])
    finally:
        if provider is not None:
            await provider.close()
    turns = sum(len(transcript.requests) for transcript in transcripts)
    stepping = sum(t.timings_s["step"] for t in transcripts)  # without the oracle, which may play a page of its own
    return {
        f"{name}_tasks": len(transcripts),
        f"{name}_solved_share": statistics.fmean(map(solved, transcripts)),
        f"{name}_steps_per_s": turns / stepping,
        f"{name}_step_ms": statistics.median(clock.seconds) * 1e3,
        f"{name}_overhead_ms_per_turn": (stepping - sum(clock.seconds)) / turns * 1e3,
        f"{name}_reset_ms": statistics.median(t.timings_s["reset"] for t in transcripts) * 1e3,
        f"{name}_score_ms": statistics.median(t.timings_s["score"] for t in transcripts) * 1e3,
    }


async def crowd(live: int) -> dict[str, Any]:
    """``live`` terminal episodes at once, two each, and how late a ticker on the same loop comes."""
    spec = environment(CROWD)
    provider = load_component("sandboxes", "bubblewrap")({"max_live": 2 * live + 4})
    player = MessagePlayer(scripted_policy("scripted:expert"), provider, Budget(wall_s=600, score_s=600))
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late.append(time.perf_counter() - due)

    async def play(index: int) -> Transcript:
        task = spec.tasks.task("heldout", index)
        return (await player.play(Job(f"crowd-{index}", task, spec, seed=index)))[1]

    spec.tasks.task("heldout", 0)  # makes all held-out tasks, once
    ticking = asyncio.create_task(tick())
    began = time.perf_counter()
    first = await asyncio.gather(*(play(index) for index in range(live)))
    second = await asyncio.gather(*(play(live + index) for index in range(live)))
    took = time.perf_counter() - began
    ticking.cancel()
    await provider.close()
    late.sort()
    return {
        "crowd_live": live,
        "crowd_episodes_per_s": 2 * live / took,
        "crowd_failures": sum(solved(transcript) < 1 for transcript in [*first, *second]),
        "crowd_lag_p50_ms": late[len(late) // 2] * 1e3,
        "crowd_lag_p99_ms": late[int(len(late) * 0.99)] * 1e3,
        "crowd_lag_max_ms": late[-1] * 1e3,
    }


def open_provider(spec: EnvSpec) -> SandboxProvider | None:
    return load_component("sandboxes", "bubblewrap")() if spec.box is not None else None


def solved(transcript: Transcript) -> float:
    """1 or 0; a failure is 0 here, since the oracle has no excuse."""
    return transcript.outcome.result() if transcript.outcome.is_valid else 0.0


def measure(tasks: int, live: int, only: list[str]) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for name, suite in FAMILIES.items():
        if only and name not in only:
            continue
        try:
            measured |= asyncio.run(family(name, suite, tasks))
        except (ConfigError, UnknownName) as error:
            measured[f"{name}_error"] = str(error)
    if "browser_step_ms" in measured:
        measured["browser_step_over_browsergym_delay"] = measured["browser_step_ms"] / BROWSERGYM_DELAY_MS
    if not only or "crowd" in only:
        measured |= asyncio.run(crowd(live))
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--tasks", type=int, default=20, help="of each family")
    parser.add_argument("--live", type=int, default=64, help="terminal episodes at once")
    parser.add_argument("--only", nargs="+", default=[], choices=[*FAMILIES, "crowd"], metavar="FAMILY")
    options = parser.parse_args()
    measured = measure(options.tasks, options.live, options.only)
    targets = {name: bound for name, bound in TARGETS.items() if not options.only or name.split("_")[0] in options.only}
    return report(measured, targets, options.json)


if __name__ == "__main__":
    sys.exit(main())

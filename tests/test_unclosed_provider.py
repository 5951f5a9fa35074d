"""A program that ends without closing its provider ends all the same, and its boxes with it; and bwrap as a process."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time

import pytest
from sandbox_contract import host_processes, new_mark

from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_sandboxes.bubblewrap.host import Host
from glmgym_sandboxes.bubblewrap.process import Process, end, spawn

ENDS_WITHIN_S = 120.0
PROGRAM = """
import asyncio, sys
from glmgym.registry import load_component
from glmgym.sandbox import BoxSpec

async def main(backend, mark, pause):
    provider = load_component("sandboxes", backend)({"warm": 3})
    box = await provider.open(BoxSpec(cwd="/" + mark))
    await box.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo started"])
    await asyncio.sleep(float(pause))
    raise SystemExit(7)

asyncio.run(main(*sys.argv[1:]))
"""


def end_unclosed(backend: str, pause_s: float) -> None:
    """At the end of ``asyncio.run``, which cancels all tasks, warm boxes are starting."""
    mark = new_mark()
    ended = subprocess.run([sys.executable, "-c", PROGRAM, backend, mark, str(pause_s)], timeout=ENDS_WITHIN_S)
    assert ended.returncode == 7
    deadline = time.monotonic() + 60
    while (left := host_processes(mark, anywhere=True)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


@pytest.mark.bubblewrap
@pytest.mark.parametrize("pause_s", [0.0, 0.004, 0.02, 0.1])
def test_bubblewrap_ends_with_its_program(bubblewrap_works: None, pause_s: float) -> None:
    end_unclosed("bubblewrap", pause_s)


@pytest.mark.docker
@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_docker_ends_with_its_program(docker_base: None, pause_s: float) -> None:
    end_unclosed("docker", pause_s)


@pytest.fixture
def host() -> Host:
    return Host.look()


@pytest.mark.bubblewrap
class TestProcess:
    async def test_it_says_how_it_ended(self, host: Host, bubblewrap_works: None) -> None:
        process = await spawn(["sh", "-c", "read word; echo $word; echo aside >&2; exit 3"], host)
        assert process.returncode is None
        process.stdin.write(b"word\n")
        assert await process.stdout.readline() == b"word\n"
        process.stdin.close()
        assert (await end(process), process.returncode) == ("aside", 3)

    @pytest.mark.parametrize("pidfd", [True, False])
    async def test_one_that_stays_is_killed(
        self, host: Host, bubblewrap_works: None, monkeypatch: pytest.MonkeyPatch, pidfd: bool
    ) -> None:
        def none(pid: int) -> int:
            raise OSError("no such call")

        monkeypatch.setattr("glmgym_sandboxes.bubblewrap.process.END_TIMEOUT_S", 0.1)
        if not pidfd:
            monkeypatch.setattr(os, "pidfd_open", none)
        process = await spawn(["sleep", "300"], host)
        process.stdin.close()
        assert (await end(process), process.returncode) == ("", -9)

    async def test_cancelled_at_any_moment_it_is_seen_off(self, host: Host, bubblewrap_works: None) -> None:
        rng, mark, descriptors, cancelled = random.Random(0), new_mark(), len(os.listdir("/proc/self/fd")), 0
        for _ in range(60):
            start = asyncio.create_task(spawn(["sh", "-c", "read word; exit 0", mark], host))
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            start.cancel()
            outcome = (await asyncio.gather(start, return_exceptions=True))[0]
            cancelled += isinstance(outcome, asyncio.CancelledError)
            if isinstance(outcome, Process):
                outcome.stdin.close()
                await end(outcome)
            assert host_processes(mark, anywhere=True) == []
        del start, outcome
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > descriptors + 1 and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert 10 < cancelled < 60
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1

    async def test_a_living_box_costs_no_thread(self, bubblewrap_works: None) -> None:
        provider = open_provider({"warm": 0})
        try:
            await provider.open(BoxSpec())
            before = set(threading.enumerate())
            await asyncio.gather(*(provider.open(BoxSpec()) for _ in range(4)))
            started = [thread.name for thread in set(threading.enumerate()) - before]
            assert all(name.startswith("asyncio_") for name in started), started  # of the loop's executor
        finally:
            await provider.close()

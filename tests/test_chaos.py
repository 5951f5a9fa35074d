"""SIGKILL from outside: of a driver with eight boxes, which must leave nothing, and of the engine under rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from episodes import CHAT, DONE, play
from garbage import alone, engine, mounts_naming
from sandbox_contract import host_processes, new_mark

from glmgym.env import Opening, ScoreView, Task
from glmgym.errors import SandboxFailure
from glmgym.messages import ToolCall, assistant
from glmgym.owner import OWNER_LABEL, Owner
from glmgym.registry import load_component
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym.tool import tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward, Stop
from glmgym_sandboxes.gc import Finding, collect_garbage

KILLS = 50 if os.environ.get("GLMGYM_SOAK") else 3
LAST_KILL_S = 3.0  # after the driver said who it is, or after its first box
# An engine ends what a killed client asked for: a create that arrived comes to its end seconds later on a busy machine.
CLEAN_WITHIN_S = 30.0
STAYS_CLEAN_S = 1.0
DRIVER = """
import asyncio, random, sys
from glmgym.registry import load_component
from glmgym.sandbox import BoxSpec
from glmgym.owner import Owner

async def episodes(provider, spec, mark, rng):
    while True:
        box = await provider.open(spec)
        await box.write("file", bytes(rng.randrange(200_000)))
        await box.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo started"])
        shell = await box.shell()
        await shell.run("cd /tmp; sleep 0.05")
        for sibling in await box.fork() if rng.random() < 0.5 else []:
            await sibling.run(["cat", "file"])
            await sibling.close()
        if rng.random() < 0.7:
            await box.close()
        else:
            await asyncio.gather(box.run(["sleep", "0.2"]), box.close(), return_exceptions=True)

async def main(backend, writable, mark, seed):
    rng = random.Random(int(seed))
    provider = load_component("sandboxes", backend)({"warm": 1, "max_live": 10, "max_starting": 4})
    print(Owner.current(), flush=True)
    spec = BoxSpec(cwd="/" + mark, writable_root=bool(writable))
    await asyncio.gather(*(episodes(provider, spec, mark, rng) for _ in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True)
class Driver:
    """A process with eight boxes that work in a directory called ``mark``: every command line of theirs has it."""

    process: subprocess.Popen[str]
    owner: Owner
    mark: str

    @classmethod
    def start(cls, backend: str, seed: int, *, writable: bool = False) -> Driver:
        mark = new_mark()
        arguments = [backend, "writable" if writable else "", mark, str(seed)]
        process = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        owner = Owner.parse(process.stdout.readline().strip())
        assert owner is not None, "the driver did not start"
        return cls(process, owner, mark)

    def wait_for_boxes(self) -> None:
        end = time.monotonic() + 60
        while not host_processes(self.mark, anywhere=True):
            assert time.monotonic() < end, "no box has started"
            time.sleep(0.02)

    def kill(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def left(self) -> list[str]:
        """What this machine still has of it, looked for by name and not as the collector looks."""
        name = str(self.owner)
        processes = host_processes(self.mark, anywhere=True)
        groups = [directory for directory, _, _ in os.walk("/sys/fs/cgroup") if name in directory]
        scratch = [str(path) for path in Path(f"/tmp/glmgym-{os.getuid()}").glob(f"{name}*")]
        return [*(f"process {pid}" for pid in processes), *groups, *mounts_naming(name), *scratch]


async def left_in_engine(owner: Owner) -> list[str]:
    ours = {"label": [f"{OWNER_LABEL}={owner}"]}
    async with engine() as docker:
        volumes: Any = docker.volumes
        return [
            *(one.id for one in await docker.containers.list(all=True, filters=json.dumps(ours))),
            *(one["Id"] for one in await docker.images.list(filters=ours, all=True)),
            *(one["Name"] for one in (await volumes.list(filters=ours))["Volumes"] or ()),
            *(one["Name"] for one in await docker.networks.list(filters=ours)),
        ]


async def kill_again_and_again(backend: str, look: Callable[[Driver], Awaitable[list[str]]]) -> None:
    """Kill drivers at random moments, half of them once they have boxes; each must leave nothing that ``look`` sees.

    They take turns in having boxes with a writable root, of which a fork makes an image, or a copy on disk.
    """
    rng = random.Random(5)
    for life in range(KILLS):
        driver = await asyncio.to_thread(Driver.start, backend, life, writable=life % 4 < 2)
        try:
            if life % 2 == 0:
                await asyncio.to_thread(driver.wait_for_boxes)
            await asyncio.sleep(rng.uniform(0, LAST_KILL_S))
            assert driver.process.poll() is None, "the driver ended by itself"
        finally:
            driver.kill()
        findings, end, clean_since = list[Finding](), time.monotonic() + CLEAN_WITHIN_S, None
        while clean_since is None or time.monotonic() < clean_since + STAYS_CLEAN_S:
            findings += [one for one in await collect_garbage() if one.owner == str(driver.owner)]
            if left := [*await asyncio.to_thread(driver.left), *await look(driver)]:
                assert time.monotonic() < end, left
            clean_since = None if left else clean_since or time.monotonic()
            await asyncio.sleep(0.1)
        assert {one.result for one in findings} <= {"removed", "failed"}, findings
        collected = Counter(one.kind for one in findings if one.result == "removed")
        print(f"life {life}: collected {dict(collected)}")


@pytest.mark.slow
@pytest.mark.bubblewrap
async def test_x5_killed_at_any_moment_bubblewrap_leaves_nothing(bubblewrap_works: None) -> None:
    """X5: processes end by themselves, and what the kernel keeps of a dead driver is collected."""

    async def look(driver: Driver) -> list[str]:
        return []

    with alone():
        await kill_again_and_again("bubblewrap", look)


@pytest.mark.slow
@pytest.mark.docker
async def test_x5_killed_at_any_moment_docker_leaves_nothing(docker_base: None) -> None:
    """X5: containers of every state, and the images of forks."""

    async def look(driver: Driver) -> list[str]:
        return await left_in_engine(driver.owner)

    with alone():
        await kill_again_and_again("docker", look)


@dataclass
class PrivateEngine:
    """A Docker engine with all it has below ``directory``, and no network that could touch this machine's."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.directory / "socket")

    def start(self) -> None:
        for stale in (self.directory / "pidfile", *self.directory.glob("exec-root/containerd/containerd*")):
            stale.unlink(missing_ok=True)  # of a killed one, for whose containerd the next would wait in vain
        places = [f"--{option}={self.directory / option}" for option in ("data-root", "exec-root", "pidfile")]
        # In a network namespace of its own: an engine without a bridge removes the machine's docker0.
        command = ["unshare", "--net", "dockerd", "--bridge=none", "--iptables=false", f"--host=unix://{self.socket}"]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *places], stderr=log)
        end = time.monotonic() + 120
        while not asyncio.run(answers(self.socket)):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("\n".join((self.directory / "log").read_text().splitlines()[-5:]))
            time.sleep(0.1)

    def kill(self) -> None:
        """As a crash: its containers run on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def remove(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
        end = time.monotonic() + 20
        while (pids := host_processes(str(self.directory), anywhere=True)) and time.monotonic() < end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)  # for the kernel to end them: none may write below what goes now
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(f"{self.directory}/"):
                subprocess.run(["umount", "-l", line.split()[4]], check=True)
        subprocess.run(["rm", "-rf", self.directory], check=True)


async def answers(socket: str) -> bool:
    docker = aiodocker.Docker(f"unix://{socket}")
    try:
        await docker.version()
    except aiodocker.DockerError:
        return False
    finally:
        await docker.close()
    return True


class Worker(ToolEnv):
    """Each call of its tool runs a program in the box for ``work_s``; each call releases ``busy``."""

    box: Sandbox | None = None

    def __init__(self, busy: asyncio.Semaphore, work_s: float = 1.0) -> None:
        super().__init__()
        self._busy, self._work_s = busy, work_s

    @tool
    async def work(self) -> str:
        """Work for a while."""
        assert self.box is not None
        self._busy.release()
        script = f"sleep {self._work_s}; echo worked"
        return (await self.box.run(["sh", "-c", script], timeout_s=self._work_s + 30)).text

    tools = (work,)

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        self.box = box
        return await super().reset(task, box)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        results = [message.content for message in view.messages if message.role == "tool"]
        return (Reward("worked", float(view.answer == "done" and results == ["worked\n"] * TURNS)),)


TURNS = 4
SCRIPT = [*[CHAT.turn(assistant("", ToolCall("call_0", "work", {})))] * TURNS, DONE]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd") is None, reason="a private engine takes root and dockerd"
)
async def test_an_engine_killed_and_started_again_fails_only_the_rollouts_it_ran(
    docker_base: None, bubblewrap_works: None
) -> None:
    """hazard 8: trajectories in its boxes are failures of the sandbox, without a reward; the others score.

    The failures may be tried again, and the same provider serves them once the engine is back.
    """
    own = PrivateEngine(Path(tempfile.mkdtemp(prefix="glmgym-engine-", dir="/tmp")))
    docker = load_component("sandboxes", "docker")({"warm": 0, "socket": own.socket})
    bubblewrap = load_component("sandboxes", "bubblewrap")({"warm": 0})
    try:
        await asyncio.to_thread(own.start)
        await (await docker.open(BoxSpec())).close()  # brings the image into this engine
        busy = [asyncio.Semaphore(0) for _ in range(7)]
        # These are to be at work when the engine dies, however long the last one's start takes.
        affected = [asyncio.create_task(play(Worker(begun, 90.0), SCRIPT, provider=docker)) for begun in busy[:3]]
        others = [asyncio.create_task(play(Worker(begun), SCRIPT, provider=bubblewrap)) for begun in busy[3:6]]
        async with asyncio.timeout(60):
            for begun in busy[:6]:
                await begun.acquire()
        await asyncio.to_thread(own.kill)
        failed = [(await task)[0].outcome for task in affected]
        for outcome in failed:
            assert (outcome.stop, outcome.rewards) == (Stop.FAILED, ())
            assert outcome.failure is not None
            assert (outcome.failure.origin, outcome.failure.retryable) == ("sandbox", True)
        with pytest.raises(SandboxFailure, match="no answer from the container engine") as refused:
            await docker.open(BoxSpec())
        assert refused.value.retryable
        await asyncio.to_thread(own.start)
        again = [(await play(Worker(busy[6]), SCRIPT, provider=docker))[0]]
        for trajectory in [*[(await task)[0] for task in others], *again]:
            assert trajectory.outcome.stop == Stop.DONE
            assert [reward.value for reward in trajectory.outcome.rewards] == [1.0]
    finally:
        await bubblewrap.close()
        await docker.close()
        await asyncio.to_thread(own.remove)

"""Garbage made on purpose: owners that are gone, and one collection at a time among the test processes."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiodocker

from glmgym import scratch
from glmgym.owner import Owner
from glmgym_sandboxes import leftovers


@contextmanager
def alone() -> Iterator[None]:
    """No other test collects meanwhile: it would take what this one made to look at."""
    with Path(tempfile.gettempdir(), f"glmgym-gc-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def gone() -> Owner:
    """An owner that never was: our pid, another start."""
    return Owner(os.getpid(), random.randrange(10**15, 10**16), Owner.current().boot)


def left_by(owner: Owner) -> list[leftovers.Leftover]:
    return [left for left in leftovers.find() if left.owner == owner]


def own_places() -> set[Path]:
    """This process's places on disk; a browser that earlier tests left running has one."""
    with suppress(FileNotFoundError):  # the directory goes with its last place, at any moment of a look
        return set((scratch.root() / str(Owner.current())).iterdir())
    return set()


def mounts_naming(*names: str) -> list[str]:
    """This machine's mounts that name one of these; others come and go with the tests beside."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(name in line for name in names)]


@asynccontextmanager
async def engine() -> AsyncIterator[aiodocker.Docker]:
    """A client of the Docker engine."""
    docker = aiodocker.Docker(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    try:
        yield docker
    finally:
        await docker.close()

"""Small real training runs for tests: the shipped policy, real boxes, a few episodes, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "GLMGYM_TEST_RUN"  # in the environment of a run and of every process it starts outside a box

SMALL = (
    "trainer.steps=4",
    "trainer.batch_size=8",
    "algorithm.value_warmup=1",
    "fleet.max_live=8",
    "sandbox.warm=1",
    "eval.episodes=0",
)


def command(out: Path, *options: str, resume: bool = False, settings: tuple[str, ...] = SMALL) -> list[str]:
    """``glmgym train quickstart`` with a recipe that takes seconds."""
    sets = [part for setting in settings for part in ("--set", setting)]
    main = ["-c", "from glmgym.cli import main; main()", "train", "quickstart", "--out", str(out), *sets, *options]
    return [sys.executable, *main, *(["--resume"] if resume else [])]


def start(out: Path, *options: str, resume: bool = False, settings: tuple[str, ...] = SMALL) -> subprocess.Popen[str]:
    """The run as a process in a session of its own; its output is piped together."""
    return subprocess.Popen(
        command(out, *options, resume=resume, settings=settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", MARK: str(out)},
    )


def left_over(out: Path) -> list[str]:
    """Command lines of living processes that carry this run's mark, and of box processes without a living parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        is_ours = f"{MARK}={out}".encode() in environ.split(b"\0")
        is_orphan_box = ("agent.py" in line or "bwrap" in line) and state[1] == "1"
        if state[0] != "Z" and (is_ours or is_orphan_box):
            found.append(f"{entry.name}: {line}")
    return found


def wait_until_gone(out: Path, within_s: float = 60.0) -> None:
    """Return once nothing is left over; a box that another test's killed run leaves is seen for a moment too."""
    deadline = time.monotonic() + within_s
    while left := left_over(out):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver alone: what it started must end by itself."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

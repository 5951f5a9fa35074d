"""How the agent stops and ends processes that are born, wait for each other, and end meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from glmgym_sandboxes import agent

# Between its vfork and its exec the child opens a pipe that nobody reads: until somebody does, its parent waits.
VFORK = """
import os
actions = [(os.POSIX_SPAWN_OPEN, 1, "pipe", os.O_WRONLY, 0)]
child = os.posix_spawn("/bin/sleep", ["sleep", "300"], {}, file_actions=actions)
print(os.waitpid(child, os.WNOHANG), flush=True)
import time; time.sleep(300)
"""
IN_A_THREAD = f"import threading, time; threading.Thread(target=exec, args=({VFORK!r},)).start(); time.sleep(300)"


@pytest.fixture(params=[VFORK, IN_A_THREAD], ids=["alone", "in a thread"])
def vforking(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its child to come to its exec."""
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([sys.executable, "-c", request.param], cwd=tmp_path, stdout=subprocess.PIPE)
    end = time.monotonic() + 20
    while b"D" not in agent.thread_states(process.pid) or len(family(process.pid)) < 2:
        assert time.monotonic() < end, "no vfork"
        time.sleep(0.01)
    yield process
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def family(pid: int) -> set[int]:
    return agent.descendants(agent.proc_table(), pid)


def test_a_child_of_a_vfork_goes_on_to_its_exec(vforking: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Stopped on its way it would hold its parent, which then never stops: forking a box failed, 2 times of 25."""
    opened: list[int] = []
    reader = threading.Timer(0.3, lambda: opened.append(os.open(tmp_path / "pipe", os.O_RDWR)))  # not waiting
    reader.start()
    halted: set[int] = set()
    assert agent.halt(halted, lambda: family(vforking.pid), 20.0)
    reader.join()
    os.close(opened.pop())
    assert halted == family(vforking.pid)
    assert len(halted) == 2
    assert all(agent.thread_states(pid) == {b"T"} for pid in halted)


def test_a_child_of_a_vfork_that_never_comes_to_its_exec_is_killed(vforking: subprocess.Popen[bytes]) -> None:
    """Else a policy's program could forbid that its box is forked, and graded."""
    halted: set[int] = set()
    began = time.monotonic()
    assert agent.halt(halted, lambda: family(vforking.pid), 2.0)
    assert time.monotonic() - began > 1.0, "it had its time"
    assert family(vforking.pid) == {vforking.pid}
    os.kill(vforking.pid, signal.SIGCONT)
    assert vforking.stdout is not None
    assert b", 9)" in vforking.stdout.readline()


def test_one_look_that_finds_nobody_is_not_the_last() -> None:
    """A process that is born while its parent ends is in no list for a moment: here the second look misses it."""
    first, second = (subprocess.Popen(["sleep", "300"]) for _ in range(2))
    looks: Iterator[list[int]] = iter([[first.pid], [], [second.pid]])
    targets: Callable[[], list[int]] = lambda: next(looks, [])  # noqa: E731
    agent.Agent.kill(SimpleNamespace(reap=lambda: None), targets)  # type: ignore[arg-type]
    assert (first.wait(20), second.wait(20)) == (-signal.SIGKILL, -signal.SIGKILL)

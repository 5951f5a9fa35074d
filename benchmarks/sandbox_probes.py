"""The five probes of the sandbox benchmark, asked from outside: this machine's process table is the witness.

A probe is ``True`` if the contender holds, ``False`` if it does not. What a contender leaves behind is removed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sandbox_peers import ContenderError, Process

BOUNDED_MB = 10.0  # half of what the command writes
AT_ONCE_S = 1.5  # docker itself waits 2 s for a stream that a background child holds open
GONE_WITHIN_S = 5.0
CONTAINER = re.compile(r"[0-9a-f]{64}")


def timeout_kills_all(box: Process) -> bool:
    """A command and its child in another session are there before the timeout and gone after it."""
    marks = [new_mark(), new_mark()]
    box.send("run", argv=["sh", "-c", f"setsid sleep {marks[0]} & sleep {marks[1]}"], timeout_s=2.0)
    appeared = wait_until(lambda: all(pids_of(mark) for mark in marks), 10.0)
    with contextlib.suppress(ContenderError):
        box.receive()
    gone = wait_until(lambda: not any(pids_of(mark) for mark in marks), GONE_WITHIN_S)
    kill_marked(*marks)
    if not appeared:
        raise ContenderError("the processes of the timeout probe never appeared")
    return gone


def background_returns_at_once(box: Process) -> bool:
    """``sleep & echo`` does not wait for the sleep, and neither does the next command."""
    mark = new_mark(30)
    box.send("run", argv=["sh", "-c", f"sleep {mark} & echo ok"], timeout_s=60.0)
    at_once = box.has_replied(AT_ONCE_S)
    if not at_once:
        kill_marked(mark)
    first = box.receive()
    second = box.ask("run", argv=["echo", "ok"])
    kill_marked(mark)
    return at_once and second["s"] < AT_ONCE_S and all(output_of(reply).strip() == b"ok" for reply in (first, second))


def bytes_survive(box: Process) -> bool:
    reply = box.ask("run", argv=["printf", r"\377\376\0"])
    return "bytes" in reply and output_of(reply) == b"\xff\xfe\0"


def nothing_left_after_kill(start: Callable[[], Process]) -> bool:
    """After SIGKILL of the client: no process of the box, no container, no file of it on this machine."""
    client, mark = start(), new_mark()
    places = [Path(place) for place in client.ask("open")]
    client.send("run", argv=["sleep", mark], timeout_s=600.0)
    if not wait_until(lambda: bool(pids_of(mark)), 10.0):
        client.kill()
        raise ContenderError("the process of the kill probe never appeared")
    containers = {found for pid in pids_of(mark) for found in containers_of(pid)}
    client.kill()

    def nothing() -> bool:
        return not (pids_of(mark) or any(map(container_exists, containers)) or any(place.exists() for place in places))

    gone = wait_until(nothing, GONE_WITHIN_S)
    kill_marked(mark)
    for container in filter(container_exists, containers):
        subprocess.run(["docker", "rm", "-fv", container], capture_output=True)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    return gone


def output_of(reply: dict[str, str]) -> bytes:
    return base64.b64decode(reply["bytes"]) if "bytes" in reply else reply["text"].encode()


def new_mark(seconds: int = 600) -> str:
    """An argument of ``sleep`` that no other process has."""
    return f"{seconds}.{random.SystemRandom().randrange(10**9, 10**10)}"


def pids_of(mark: str) -> list[int]:
    """The processes of this machine that are ``sleep mark``, in whatever namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes() == b"sleep\0" + mark.encode() + b"\0":
                    found.append(int(entry.name))
    return found


def kill_marked(*marks: str) -> None:
    for mark in marks:
        for pid in pids_of(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def containers_of(pid: int) -> set[str]:
    try:
        return set(CONTAINER.findall(Path(f"/proc/{pid}/cgroup").read_text()))
    except OSError:
        return set()


def container_exists(container: str) -> bool:
    return subprocess.run(["docker", "container", "inspect", container], capture_output=True).returncode == 0


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True

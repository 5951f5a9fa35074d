"""The queue is whole, its worker ended in the regular way, and the four others are the processes they were.

Each worker was told a badge at its start, which is written down nowhere: a worker started anew has none.
"""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SPOOL = Path("/work/spool")
OTHERS = {"alpha", "beta", "delta", "omega"}


def entries(name: str, last: int) -> str:
    return "".join(f"{name} job {number} size {number * 7919 % 1000}\n" for number in range(1, last + 1))


def badge(name: str) -> str:
    return hashlib.sha256(f"badge of {name}\n".encode()).hexdigest()[:16]


def held(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(link)


def workers() -> dict[str, int]:
    """Process ids of the running workers by the name of the queue that each holds."""
    found: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"/opt/spool/worker.py" in (process / "cmdline").read_bytes().split(b"\0"):
                names = [Path(path).name.partition(".")[0] for path in held(process) if path.startswith(str(SPOOL))]
                found |= dict.fromkeys(names, int(process.name))
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return found


def test_the_queue_is_whole() -> None:
    assert (SPOOL / "gamma.queue").read_text() == entries("gamma", 43)


def test_the_worker_ended_in_the_regular_way() -> None:
    assert (SPOOL / "gamma.closed").read_text() == f"gamma closed {badge('gamma')}\n"
    assert "gamma" not in workers()


def test_the_others_go_on() -> None:
    running = workers()
    assert running.keys() == OTHERS
    for name, pid in running.items():
        shown = Path("/run/spool", name)
        shown.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not (shown.exists() and shown.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert shown.read_text() == badge(name)
    queues = {name: (SPOOL / f"{name}.queue").read_text() for name in OTHERS}
    assert queues == {name: entries(name, 40) for name in OTHERS}


def test_the_spool_holds_nothing_else() -> None:
    assert {path.name for path in SPOOL.iterdir()} == {f"{name}.queue" for name in (*OTHERS, "gamma")} | {
        "gamma.closed"
    }

"""Memory and process limits of a whole box through control groups, where this machine lets us make them.

Owns the groups ``glmgym-PID-START-N``: one per box and controller, removed when the box closes, and swept by the next
provider if their owner was killed. Both generations are handled; ``find`` gives ``None`` where neither is writable.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_PREFIX = "glmgym-"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """One group. ``join``, ``out_of_memory`` and ``remove`` touch the kernel: call them off the event loop."""

    path: Path
    is_v2: bool

    def join(self, pid: int) -> None:
        """Raises OSError: the process is gone or may not be moved."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, waiting up to a second for its last process to be gone."""
        end = time.monotonic() + 1.0
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                if time.monotonic() > end:
                    logger.warning("control group %s is left behind: %s", self.path, error)
                    return
                time.sleep(0.005)
            else:
                return


@dataclass(frozen=True, slots=True)
class Controller:
    """A place where groups with one kind of limit, ``memory`` or ``pids``, can be made."""

    kind: str
    base: Path
    is_v2: bool

    def create(self, limit: int) -> Group:
        """A new group limited to ``limit`` bytes or processes; swap is part of the memory limit.

        Raises:
            OSError: the kernel refused.
        """
        path = self.base / f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-{next(_numbers)}"
        path.mkdir()
        if self.kind == "pids":
            (path / "pids.max").write_text(str(limit))
        elif self.is_v2:
            (path / "memory.max").write_text(str(limit))
            _write_if_there(path / "memory.swap.max", "0")
        else:
            (path / "memory.limit_in_bytes").write_text(str(limit))
            _write_if_there(path / "memory.memsw.limit_in_bytes", str(limit))
        return Group(path, self.is_v2)

    def sweep(self) -> None:
        """Remove the groups whose owner is gone."""
        for path in self.base.glob(_PREFIX + "*"):
            pid, _, start = path.name.removeprefix(_PREFIX).rpartition("-")[0].partition("-")
            if pid.isdigit() and _start_time(int(pid)) != start:
                with contextlib.suppress(OSError):  # still dying, or another provider was faster
                    path.rmdir()


def find(kind: str) -> Controller | None:
    """Where groups limiting ``kind`` ("memory" or "pids") can be made: below our own group, else below the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kind in kinds.split(",") or not kinds:
                roots = [Path("/sys/fs/cgroup", kinds)] if kinds else [Path("/sys/fs/cgroup")]
                for base in dict.fromkeys([roots[0] / own.lstrip("/"), roots[0]]):
                    if _can_limit(base, kind, is_v2=not kinds):
                        return Controller(kind, base, is_v2=not kinds)
    return None


def _can_limit(base: Path, kind: str, *, is_v2: bool) -> bool:
    """True if a child of ``base`` really gets the limit's file; tried, since permissions do not tell."""
    if is_v2:
        with contextlib.suppress(OSError):
            (base / "cgroup.subtree_control").write_text(f"+{kind}")
    probe = base / f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-{next(_numbers)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    file = "pids.max" if kind == "pids" else "memory.max" if is_v2 else "memory.limit_in_bytes"
    works = os.access(probe / file, os.W_OK) and os.access(probe / "cgroup.procs", os.W_OK)
    probe.rmdir()
    return works


def _write_if_there(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # kernels without swap accounting have no such file
        path.write_text(text)


def _start_time(pid: int) -> str:
    """The process's start in ticks since boot, which tells a living owner from a reused pid; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""

"""Memory, process and CPU limits of a whole box through control groups, where this machine lets us make them.

Owns the groups ``glmgym-OWNER-N``: one per box and hierarchy, removed when the box closes, and swept by the next
provider or by ``glmgym gc`` if their owner was killed. Both generations are handled: the first has a hierarchy for
each kind of limit, the second one for all, where a box is in one group with all its limits.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmgym.owner import Owner

logger = logging.getLogger(__name__)

Kind = Literal["memory", "pids", "cpu"]
CPU_PERIOD_US = 100_000  # the kernel's default; a quota below 1000 us is refused, so 0.01 CPUs are the least
_PREFIX = "glmgym-"
_FILES: dict[tuple[Kind, bool], str] = {  # (kind, second generation): the file that holds the limit
    ("memory", False): "memory.limit_in_bytes",
    ("memory", True): "memory.max",
    ("pids", False): "pids.max",
    ("pids", True): "pids.max",
    ("cpu", False): "cpu.cfs_quota_us",
    ("cpu", True): "cpu.max",
}
END_S = 10.0  # a busy machine is slow to reap
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """One group. ``join`` and ``remove`` touch the kernel: call them off the event loop."""

    path: Path

    def join(self, pid: int) -> None:
        """Raises OSError: the process is gone or may not be moved."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, waiting ``END_S`` for its last process to be gone."""
        end = time.monotonic() + END_S
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
    """A place where groups with one kind of limit can be made."""

    kind: Kind
    base: Path
    is_v2: bool

    def limit(self, group: Path, value: float) -> None:
        """Set the limit of one group: bytes (swap is part of them), processes, or CPUs' worth of time.

        Raises:
            OSError: the kernel refused.
        """
        file = group / _FILES[self.kind, self.is_v2]
        if self.kind == "cpu":
            quota_us = round(value * CPU_PERIOD_US)
            file.write_text(f"{quota_us} {CPU_PERIOD_US}" if self.is_v2 else str(quota_us))
            return
        file.write_text(str(int(value)))
        if self.kind == "memory":
            # Kernels without swap accounting have no such file.
            with contextlib.suppress(OSError):
                if self.is_v2:
                    (group / "memory.swap.max").write_text("0")
                else:
                    (group / "memory.memsw.limit_in_bytes").write_text(str(int(value)))

    def sweep(self) -> None:
        """Remove the groups whose owner is gone."""
        for path in self.base.glob(_PREFIX + "*"):
            owner = Owner.parse(path.name.removeprefix(_PREFIX).rpartition("-")[0])
            if owner is not None and not owner.is_alive():
                with contextlib.suppress(OSError):  # still dying, or another provider was faster
                    path.rmdir()


def create(limits: Iterable[tuple[Controller, float]]) -> list[Group]:
    """The groups of one box, one per hierarchy, with these limits; see ``Controller.limit`` for the units.

    Raises:
        OSError: the kernel refused; no group is left then.
    """
    name, groups = _new_name(), dict[Path, Group]()
    try:
        for controller, value in limits:
            path = controller.base / name
            if path not in groups:
                path.mkdir()
                groups[path] = Group(path)
            controller.limit(path, value)
    except OSError:
        for group in groups.values():
            group.remove()
        raise
    return list(groups.values())


def find(kind: Kind) -> Controller | None:
    """Where groups limiting ``kind`` can be made: below our own group, else below the root; ``None`` if nowhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kind in kinds.split(",") or not kinds:
                root = Path("/sys/fs/cgroup", kinds)
                for base in dict.fromkeys([root / own.lstrip("/"), root]):
                    if _can_limit(base, kind, is_v2=not kinds):
                        return Controller(kind, base, is_v2=not kinds)
    return None


def find_each(kinds: Iterable[Kind]) -> dict[Kind, Controller]:
    """What ``find`` finds, where one box can have all of it: in a second-generation hierarchy a process is in one
    group only, so limits that would need another group there than the first one's are left out."""
    found: dict[Kind, Controller] = {}
    for kind in kinds:
        controller = find(kind)
        if controller is not None and all(
            other.base == controller.base or not (other.is_v2 and controller.is_v2) for other in found.values()
        ):
            found[kind] = controller
    return found


def _can_limit(base: Path, kind: Kind, *, is_v2: bool) -> bool:
    """True if a child of ``base`` really gets the limit's file; tried, since permissions do not tell."""
    if is_v2:
        with contextlib.suppress(OSError):
            (base / "cgroup.subtree_control").write_text(f"+{kind}")
    probe = base / _new_name()
    try:
        probe.mkdir()
    except OSError:
        return False
    works = os.access(probe / _FILES[kind, is_v2], os.W_OK) and os.access(probe / "cgroup.procs", os.W_OK)
    probe.rmdir()
    return works


def _new_name() -> str:
    return f"{_PREFIX}{Owner.current()}-{next(_numbers)}"

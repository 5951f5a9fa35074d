"""Who owns a box: the process that opened it, told apart from every other one this machine has had or will have.

Everything a backend leaves outside its own memory (container, control group, scratch directory) carries ``str(owner)``
in its name or label, so that ``glmgym gc`` removes what a killed process left and never what a living one uses. There
is no lease beside it: on one machine the kernel knows who lives, and a lease that a stopped laptop or a debugger lets
run out would take the boxes of a living process. Of what another machine put on a shared engine only that one decides.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

OWNER_LABEL = "glmgym.owner"  # of containers, volumes, networks and images: ``str`` of an Owner
HOST_LABEL = "glmgym.host"  # beside it: the owner's host name
_TEXT = re.compile(r"([1-9]\d{0,6})-(\d{1,20})-([0-9a-f]{12})", re.ASCII)
_NO_BOOT = "0" * 12
_FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's constant for the namespace in which every process has a pid


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. ``pid`` and ``start`` together are unique within one boot; ``boot`` tells boots apart.

    Without /proc (not Linux) ``start`` is 0 and ``boot`` all zeros: an owner then counts as living while anything has
    its pid, which may keep too much and never removes too much.
    """

    pid: int  # in the process's own namespace
    start: int  # ticks since boot
    boot: str  # first 12 hex digits of the kernel's boot id

    @classmethod
    def current(cls) -> Owner:
        """This process. Not cached: a forked child is another owner."""
        return cls(os.getpid(), _start(os.getpid()) or 0, _boot())

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner whose ``str`` is ``text``, ``None`` if it is none's."""
        found = _TEXT.fullmatch(text)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None

    def __str__(self) -> str:
        return f"{self.pid}-{self.start}-{self.boot}"

    def is_alive(self) -> bool:
        """Reads /proc: call it off the event loop.

        A process in a container below has another pid here; it is found by its start and its pid in there.
        """
        if self.boot != _boot():
            return False
        if self.boot == _NO_BOOT or _is_hidden(self.pid):
            return _exists(self.pid)
        return _start(self.pid) == self.start or any(
            self.pid in _inner_pids(pid) and _start(pid) == self.start
            for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        )


def why_kept(owner: Owner, host: str) -> str:
    """Why what ``owner`` made must stay; "" if the owner is gone for certain. Reads /proc.

    Args:
        owner: as the label says.
        host: the name of the machine, or of the container, in which the owner ran; "" where nothing says so.
    """
    if host != socket.gethostname():
        if owner.boot != _boot() or owner.boot == _NO_BOOT:
            return f"made on {host or 'a machine it does not name'}: glmgym gc there decides"
        if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
            return f"made in {host}, whose processes cannot be seen from this container: run glmgym gc outside"
    return "its owner is alive" if owner.is_alive() else ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
    except OSError:
        return _NO_BOOT


def _start(pid: int) -> int | None:
    """The process's start in ticks since boot, ``None`` if it is gone or only waits for its parent to notice."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _inner_pids(pid: int) -> list[int]:
    """The pids the process has in the namespaces below ours; the kernel lists ours first."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
    return [int(number) for number in line.split()[2:]]


def _is_hidden(pid: int) -> bool:
    """True if the process exists and /proc, mounted with hidepid, does not show it."""
    return not Path(f"/proc/{pid}").exists() and _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

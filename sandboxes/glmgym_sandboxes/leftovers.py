"""What killed processes leave on this machine itself: control groups, mounts and scratch directories with their owner.

Owns their removal. Everything here touches the kernel or the disk: call it off the event loop. Only what is named
exactly as our backends name things is looked at; a link in the place of a directory is never followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmgym import scratch
from glmgym.owner import Owner

END_S = 5.0  # for killed processes to be gone
_GROUP = re.compile(r"glmgym-(\d+-\d+-[0-9a-f]{12})(-.*)?", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something at ``path`` that ``owner`` made; ``kind`` says how it is removed."""

    kind: Literal["cgroup", "mount", "scratch"]
    path: Path
    owner: Owner
    created: float  # seconds since 1970


def find() -> list[Leftover]:
    """What carries an owner's name, in the order in which it can be removed; living owners' things are among it."""
    return [*_groups(), *_mounts(), *_scratch()]


def remove(left: Leftover) -> None:
    """Remove it; gone already is fine.

    Raises:
        OSError: it is still there; the text says why.
    """
    if left.kind == "cgroup":
        _remove_group(left.path)
    elif left.kind == "mount":
        # Lazily: it vanishes from the tree now, and the kernel lets go of it when its last user does.
        problem = _run("umount", "-l", str(left.path))
        if left.path in (place for place, _ in _mount_table()):
            raise OSError(problem)
    else:
        remove_tree(left.path)


def _groups() -> Iterator[Leftover]:
    """Our groups in every hierarchy: a killed process may have made them below any group it was in."""
    for base in (place for place, type in _mount_table() if type in ("cgroup", "cgroup2")):
        for directory, names, _ in os.walk(base):
            ours = [name for name in names if name.startswith("glmgym-")]
            names[:] = [name for name in names if name not in ours]
            for name in ours:
                found = _GROUP.fullmatch(name)
                if found and (owner := Owner.parse(found[1])):
                    yield from _seen("cgroup", Path(directory, name), owner)


def _mounts() -> Iterator[Leftover]:
    """Mounts below the scratch directories, the innermost first."""
    root = scratch.root()
    for place, _ in reversed(_mount_table()):  # the kernel lists a mount after the one it lies on
        if place.is_relative_to(root) and place != root:
            owner = Owner.parse(place.relative_to(root).parts[0])
            if owner is not None:
                yield from _seen("mount", place, owner)


def _scratch() -> Iterator[Leftover]:
    root = scratch.root()
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(root).st_uid != os.getuid() or root.is_symlink():
            return  # somebody else's trap: /tmp is open to all
        for path in sorted(root.iterdir()):
            owner = Owner.parse(path.name)
            if owner is not None:
                yield from _seen("scratch", path, owner)


def _seen(kind: Literal["cgroup", "mount", "scratch"], path: Path, owner: Owner) -> Iterator[Leftover]:
    try:
        created = os.lstat(path).st_mtime
    except FileNotFoundError:
        return
    except OSError:  # a mount whose server is gone is still a mount
        created = time.time()
    yield Leftover(kind, path, owner, created)


def _mount_table() -> list[tuple[Path, str]]:
    """Mount point and type of each mount in our namespace; none where there is no /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    table = []
    for line in lines:
        before, _, after = line.partition(" - ")
        place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        table.append((Path(place), after.split(" ")[0]))
    return table


def _remove_group(group: Path) -> None:
    end = time.monotonic() + END_S
    while group.exists():
        pids = _kill_all(group)
        directories = [Path(directory) for directory, _, _ in os.walk(group, topdown=False)]
        try:
            for directory in directories:
                with contextlib.suppress(FileNotFoundError):
                    directory.rmdir()
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(f"{error.strerror}; in it: processes {sorted(pids)}") from error
            time.sleep(0.01)


def _kill_all(group: Path) -> set[int]:
    """Kill what runs in the group or below it; gives their pids, 0 for one that has none in our namespace."""
    with contextlib.suppress(OSError):  # Linux 5.14, v2: one write, which no fork outruns
        (group / "cgroup.kill").write_text("1")
    pids: set[int] = set()
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):  # the group, or its last process, went meanwhile
            pids.update(int(pid) for pid in Path(directory, "cgroup.procs").read_text().split())
    for pid in pids - {0}:  # kill(0) would be our own process group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def remove_tree(path: Path) -> None:
    """With rm, which unlike Python copes with a tree of any depth: what lies in it was made inside a box, or an image.

    Raises:
        OSError: it is still there; the text says why.
    """
    if inside := [place for place, _ in _mount_table() if place.is_relative_to(path)]:
        raise OSError(f"{inside[0]} is still mounted")
    problem = _run("rm", "-rf", "--", str(path))
    if os.path.lexists(path):  # directories without permissions; as in rm, links inside are not followed
        _run("chmod", "-R", "u+rwX", "--", str(path))
        problem = _run("rm", "-rf", "--", str(path))
    if os.path.lexists(path):
        raise OSError(problem)


def _run(*argv: str) -> str:
    """Run a command; gives the last thing it complains about."""
    result = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    return (result.stderr.strip() or f"{argv[0]} ended with {result.returncode}").splitlines()[-1]

"""A root filesystem as a tree of entries, and the one tar that is written of it.

Owns what an image may contain: directories, regular files, symlinks and hard links. Devices, pipes and sockets are left
out and listed, as a box makes its own /dev. Order, format and headers of the tar depend on the entries alone, and so
does its digest.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn, cast

from glmgym.errors import ConfigError

MAX_TIME = 2**33 - 1  # s, what eleven octal digits of a tar header hold
_KINDS = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFREG: tarfile.REGTYPE, stat.S_IFLNK: tarfile.SYMTYPE}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the tree. Entries with the same ``content`` are one file under several names."""

    kind: bytes  # DIRTYPE, REGTYPE or SYMTYPE of tarfile
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0  # s
    target: str = ""  # of a symlink
    size: int = 0  # bytes
    content: Hashable = None
    open: Callable[[], IO[bytes]] | None = None  # of a regular file


@dataclass(frozen=True, slots=True)
class Tree:
    """A root filesystem: entries by path without a leading slash. Files are read when the tree is written."""

    entries: dict[str, Entry]
    skipped: tuple[str, ...] = ()

    def write(self, path: Path) -> tuple[str, int]:
        """Write an uncompressed GNU tar. Returns the SHA-256 of its bytes in hex, and their number."""
        with path.open("wb") as file:
            digest = _Digest(file)
            with tarfile.open(
                fileobj=cast(IO[bytes], digest),
                mode="w|",
                format=tarfile.GNU_FORMAT,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                first: dict[Hashable, str] = {}
                for name, entry in sorted(self.entries.items()):
                    info = tarfile.TarInfo(name)
                    info.type, info.mode, info.uid, info.gid = entry.kind, entry.mode, entry.uid, entry.gid
                    info.mtime, info.linkname = entry.mtime, entry.target
                    if entry.content is not None and first.setdefault(entry.content, name) != name:
                        info.type, info.linkname = tarfile.LNKTYPE, first[entry.content]
                        tar.addfile(info)
                    elif entry.open is not None:
                        info.size = entry.size
                        with entry.open() as content:
                            tar.addfile(info, content)
                    else:
                        tar.addfile(info)
            file.flush()
            os.fsync(file.fileno())
        return digest.sha256.hexdigest(), digest.size

    def settled(self, started: float) -> Tree:
        """The tree without the time of day it was made at: what is as young as ``started`` (s) gets the age of the
        youngest that is not. What packages brought keeps its time, which compiled Python files compare."""
        youngest = max((entry.mtime for entry in self.entries.values() if entry.mtime < int(started)), default=0)
        entries = {name: replace(entry, mtime=min(entry.mtime, youngest)) for name, entry in self.entries.items()}
        return replace(self, entries=entries)


def tree_of_directory(directory: Path) -> Tree:
    """The tree below ``directory``. What belongs to a caller who is not root becomes root's, as it would be inside.

    Raises:
        ConfigError: it is no directory, is empty, or something in it cannot be read.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory")
    own = os.geteuid()
    entries: dict[str, Entry] = {}
    skipped: list[str] = []

    def refuse(error: OSError) -> NoReturn:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}")

    for parent, directories, files in os.walk(directory, onerror=refuse):
        for path in (Path(parent, name) for name in directories + files):
            status, name = path.lstat(), str(path.relative_to(directory))
            kind = _KINDS.get(stat.S_IFMT(status.st_mode))
            if kind is None:
                skipped.append(name)
                continue
            is_file = kind == tarfile.REGTYPE
            if is_file and not os.access(path, os.R_OK):
                refuse(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)))
            entries[name] = Entry(
                kind=kind,
                mode=stat.S_IMODE(status.st_mode),
                uid=0 if status.st_uid == own else status.st_uid,
                gid=0 if status.st_uid == own else status.st_gid,
                mtime=min(max(int(status.st_mtime), 0), MAX_TIME),
                target=os.readlink(path) if kind == tarfile.SYMTYPE else "",
                size=status.st_size if is_file else 0,
                content=(status.st_dev, status.st_ino) if is_file else None,
                open=functools.partial(_open, path) if is_file else None,
            )
    if not entries:
        raise ConfigError(f"{directory} is empty")
    return Tree(entries, tuple(sorted(skipped)))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


class _Digest:
    """A file that keeps the hash and the number of the bytes that went through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.sha256 = hashlib.sha256()
        self.size = 0
        self._file = file

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)

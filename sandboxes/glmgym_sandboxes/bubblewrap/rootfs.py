"""Root filesystems for bubblewrap: what a ``BoxSpec.image`` stands for on disk, who its users are, how a box enters it.

Owns nothing on disk: an image's directory is the store's, another directory is its maker's, and both stay as they are,
since boxes write to an overlay. A hostile image must not lead bubblewrap's own mounts elsewhere, so what will be
mounted over must not be reached through its symlinks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glmgym.errors import SandboxFailure
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.bubblewrap import idmapped
from glmgym_sandboxes.images import ImageStore

MAX_PASSWD_BYTES = 1 << 20
MAP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int


AGENT = User("agent", 1000, 1000)  # whoever a box's commands run as unless told otherwise


@dataclass(frozen=True, slots=True)
class RootFs:
    """One root filesystem. ``source`` is where bwrap finds it, after ``namespace`` if that is not 0."""

    directory: Path  # on this machine, as it is
    source: str
    digest: str
    users: Mapping[str, User]  # by name
    namespace: int = 0  # descriptor of the mount namespace in which ``source`` is; see ``idmapped``
    hold: int = 0  # the store's, for an image of the store

    def close(self) -> None:
        for descriptor in (self.namespace, self.hold):
            if descriptor:
                os.close(descriptor)


def open_root(image: str, run_as: tuple[int, int] | None) -> RootFs:
    """Look up an image and make it ready for boxes. Blocks: an image is extracted at its first use.

    Args:
        image: a name in the image store, or the absolute path of a root filesystem's directory.
        run_as: the user and group that a driver who is root starts bwrap as, ``None`` if bwrap runs as the driver.

    Raises:
        ImpossibleBox: no such directory, or a root no box can be made of.
        SandboxFailure: no such image, or it cannot be extracted or mapped.
    """
    with contextlib.ExitStack() as failing:
        hold = 0
        if image.startswith("/"):
            directory = Path(image)
            if not directory.is_dir():
                raise ImpossibleBox(f"image {image!r}: no such directory; give a root filesystem or an image's name")
            digest = listing_digest(directory)
        else:
            store = ImageStore()
            found = store.find(image)
            hold = store.hold(found)
            failing.callback(os.close, hold)
            directory, digest = store.rootfs(found), found.digest
        refuse_symlinks(directory, ("proc", "dev", "tmp", "run", "etc"))
        users = _users(directory)
        source, namespace = str(directory), 0
        if run_as is not None:
            source, namespace = idmapped.PLACE, _mapped_namespace(directory, run_as)
        elif (owner := directory.stat().st_uid) != os.geteuid():
            raise ImpossibleBox(
                f"image {image!r}: {directory} belongs to user {owner}, and bubblewrap shows a box only one user's "
                f"files; make a copy as user {os.geteuid()}, or import it: glmgym image import {directory} --name NAME"
            )
        failing.pop_all()
        return RootFs(directory, source, digest, users, namespace, hold)


def find_user(wanted: str, users: Mapping[str, User]) -> User:
    """Whom ``BoxSpec.user`` names: "" is uid 1000, "root" is always known, anybody else must be one of ``users``.

    Raises:
        ImpossibleBox: nobody has that name or number; the message names it.
    """
    if not wanted:
        return next((user for user in users.values() if user.uid == AGENT.uid), AGENT)
    known = {"root": User("root", 0, 0), **users}
    for user in known.values():
        if wanted in (user.name, str(user.uid)):
            return user
    raise ImpossibleBox(f"user {wanted!r}: no such user in the box; known: {', '.join(sorted(known)[:20])}")


def refuse_symlinks(directory: Path, places: Iterable[str]) -> None:
    """Raises ImpossibleBox: below the root at ``directory``, a part of one of these paths is not a directory."""
    for place in places:
        path = directory
        for part in Path(place).parts:
            path = path / part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                break
            if not stat.S_ISDIR(mode):
                inside = path.relative_to(directory)
                raise ImpossibleBox(f"/{place}: /{inside} in the root filesystem {directory} is not a directory")


def _users(directory: Path) -> dict[str, User]:
    """The image's own /etc/passwd, as far as it makes sense; the first line of a name counts, as for getpwnam(3)."""
    try:
        fd = os.open(directory / "etc/passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    with open(fd, "rb") as file:
        text = file.read(MAX_PASSWD_BYTES).decode("utf-8", "replace")
    users: dict[str, User] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] and fields[2].isdecimal() and fields[3].isdecimal():
            users.setdefault(fields[0], User(fields[0], int(fields[2]), int(fields[3])))
    return users


def listing_digest(directory: Path) -> str:
    """Of names, types, modes, sizes, times and links, not contents: a root of a gigabyte must open in a second."""
    digest = hashlib.sha256()
    for place, directories, files in os.walk(directory):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = os.path.join(place, name)
            facts = os.lstat(path)
            link = os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""
            size = 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
            line = f"{os.path.relpath(path, directory)}\0{facts.st_mode:o}\0{size}\0{facts.st_mtime_ns}\0{link}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return f"directory:{digest.hexdigest()}"


def _mapped_namespace(directory: Path, run_as: tuple[int, int]) -> int:
    """A descriptor of a mount namespace made by ``idmapped``; its script is gone when this returns."""
    command = [sys.executable, "-I", "-S", idmapped.__file__, str(directory), *map(str, run_as)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        assert script.stdout is not None
        if script.stdout.readline() != b"ready\n":
            why = script.communicate(timeout=MAP_TIMEOUT_S)[1].decode("utf-8", "replace").strip()
            raise SandboxFailure(
                f"the root filesystem {directory} cannot be shown to a box ({why}): a driver that is root needs "
                "Linux 5.19 and a file system that maps owners, such as ext4, xfs or btrfs; move the image store "
                "(XDG_CACHE_HOME) there, or run as another user"
            )
        return os.open(f"/proc/{script.pid}/ns/mnt", os.O_RDONLY)  # leaving the block ends the script's input

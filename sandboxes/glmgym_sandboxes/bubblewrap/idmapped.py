"""A mount namespace in which a root filesystem belongs to another user: ``python idmapped.py SOURCE UID GID``.

Standard library only, run as a script by a driver that is root. Its boxes run as ``nobody``, who may not change what
root owns, not even in an overlay over it. An id-mapped mount (Linux 5.12; below an overlay 5.19) shows what the owner
of SOURCE owns as UID's, without touching a file. The script makes that mount, read-only, at ``PLACE`` in a namespace of
its own, says ``ready`` and stays until its input ends; the driver holds the namespace open by a descriptor, and the
kernel drops it, mount and all, when the last of driver and boxes is gone.

Sources: mount_setattr(2), open_tree(2), move_mount(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PLACE = "/mnt"  # exists everywhere by the file system hierarchy standard; covered in our namespace only
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 0x1, 0x2, 0x4, 0x100000
_MS_REC, _MS_SLAVE = 1 << 14, 1 << 19
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def mount_mapped(source: str, uid: int, gid: int) -> None:
    """Enter a new mount namespace with ``source`` at ``PLACE``, its owner's files being ``uid``'s and ``gid``'s.

    Raises:
        OSError: not root, or the kernel or the file system cannot do it; the text names the step.
    """
    owner = os.stat(source)
    tree = _checked("open_tree", _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE))
    mapping = _user_namespace(f"{owner.st_uid} {uid} 1", f"{owner.st_gid} {gid} 1")
    attributes = struct.pack("=QQQQ", _RDONLY | _NOSUID | _NODEV | _IDMAP, 0, 0, mapping)
    size = ctypes.c_size_t(len(attributes))
    _checked("mount_setattr", _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, size))
    _checked("unshare", _libc.unshare(_CLONE_NEWNS))
    # What is unmounted outside goes here, too: the namespace keeps nothing busy. Nothing made here goes out.
    _checked("mount", _libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))
    moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(PLACE), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked("move_mount", moved)


def _user_namespace(uid_map: str, gid_map: str) -> int:
    """A descriptor of a new user namespace with these maps; a mount reads them as "ON-DISK SEEN COUNT"."""
    (asked, ask), (told, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ask, bytes([1 + (_libc.unshare(_CLONE_NEWUSER) != 0)]))
        os.read(told, 1)
        os._exit(0)
    try:
        if os.read(asked, 1) != b"\x01":
            raise OSError("unshare: no user namespace could be made")
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    finally:
        os.write(tell, b"x")
        os.waitpid(child, 0)


def _checked(step: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
    return result


def main() -> None:
    try:
        mount_mapped(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

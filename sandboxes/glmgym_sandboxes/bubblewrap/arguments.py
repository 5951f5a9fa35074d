"""What bwrap is asked for: a ``BoxSpec`` over a root as its arguments, and which specs no box can be made of.

A root filesystem is the lower layer of an overlay whose upper layer is memory in a mount namespace of the box: it is
reset by being new for each box and gone with the last process. Where the box may write to it, ``disk_mb`` is its size,
and what a box writes counts as its memory, too, as with everything else it can write to.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bounds import ImpossibleBox
from glmgym_sandboxes.bubblewrap.host import CARRIED, LAYER, Host
from glmgym_sandboxes.bubblewrap.rootfs import AGENT, RootFs, User, refuse_symlinks
from glmgym_sandboxes.gateway import PLACE

AGENT_CODE = "/run/agent.pyc"
SHM_BYTES = 16 << 20
RUN_BYTES = 4 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTS = "127.0.0.1 localhost box\n::1 localhost\n"
HOST_USERS = {"root": User("root", 0, 0), AGENT.name: AGENT}
_RESERVED = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "run", "sys", "tmp"}
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/work:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": HOSTS,
}


@dataclass(frozen=True, slots=True)
class Base:
    """What the boxes of one image have in common."""

    root: RootFs | None  # None: this machine's own /usr
    python: tuple[str, ...]  # starts the box's interpreter
    carried: bool  # that interpreter is this machine's, brought along
    code: bytes  # the agent, compiled for it
    digest: str


def check_place(spec: BoxSpec, root: RootFs | None) -> None:
    """Raises ImpossibleBox: nothing can be mounted at the working directory. Looks at the disk."""
    place = posixpath.normpath(spec.cwd)
    if not spec.cwd.startswith("/") or "\0" in place or place == "/" or place.split("/")[1] in _RESERVED:
        raise ImpossibleBox(f"working directory {spec.cwd!r}: must be absolute and outside the system, such as '/work'")
    if root is not None:
        refuse_symlinks(root.directory, [place.lstrip("/")])


def arguments(
    spec: BoxSpec,
    base: Base,
    user: User,
    host: Host,
    seccomp: bytes | None,
    inherited: list[int],
    *,
    forked: bool,
    gate: str,
) -> list[str]:
    """All but the command. Descriptors to pass on are appended to ``inherited``; the caller closes them.

    Args:
        forked: the writable root starts as a copy of another box's, to which nothing of ours is added again.
        gate: the directory of the box's gateway, "" if it may reach nothing.
    """

    def data(content: bytes) -> str:
        inherited.append(_file_with(content))
        return str(inherited[-1])

    disk_bytes = str(spec.limits.disk_mb << 20)
    # No --die-with-parent: killed with the driver in the middle of its set-up, bwrap leaves a child that waits for
    # it for ever. Instead it finishes, and the agent finds its input at an end; the agent itself dies with bwrap.
    options = ["--unshare-all", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "box"]
    options += ["--uid", str(user.uid), "--gid", str(user.gid), "--clearenv"]
    for key, value in {"PATH": PATH, "HOME": spec.cwd, "USER": user.name, "LANG": "C.UTF-8"}.items():
        options += ["--setenv", key, value]
    if spec.writable_root:
        lower = f"{LAYER}/empty" if base.root is None else base.root.source
        options += ["--overlay-src", lower, "--overlay", f"{LAYER}/upper", f"{LAYER}/work", "/"]
    elif base.root is not None:
        options += ["--overlay-src", base.root.source, "--tmp-overlay", "/"]
    if base.root is None:
        options += _own_system(host)
    files = {} if forked else _files(base.root)
    for name, text in files.items():
        options += ["--perms", "0444", "--file", data(text.encode()), name]
    options += ["--perms", "0755", "--size", str(RUN_BYTES), "--tmpfs", "/run"]
    if base.carried:
        options += ["--ro-bind", "/usr", f"{CARRIED}/usr"]
    options += ["--perms", "0444", "--file", data(base.code), AGENT_CODE]
    if gate:
        options += ["--ro-bind", gate, PLACE]
    options += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
    options += ["--remount-ro", "/dev", "--perms", "1777", "--size", disk_bytes, "--tmpfs", "/tmp"]
    if spec.writable_root:  # what the image has there stays
        options += ["--dir", spec.cwd]
    else:
        options += ["--size", disk_bytes, "--tmpfs", spec.cwd, "--remount-ro", "/run", "--remount-ro", "/"]
    options += ["--chdir", spec.cwd]
    return [*options, "--seccomp", data(seccomp)] if seccomp is not None else options


def agent_command(spec: BoxSpec, base: Base, host: Host) -> list[str]:
    max_pids = spec.limits.pids if host.pids_by_rlimit else 0
    max_data_mb = 0 if "memory" in host.controllers else spec.limits.memory_mb
    return [*base.python, "-I", "-S", AGENT_CODE, spec.cwd, str(max_pids), str(max_data_mb)]


def _files(root: RootFs | None) -> dict[str, str]:
    if root is None:
        return {f"/etc/{name}": text for name, text in _ETC.items()}
    # An image leaves this file to whoever runs it; what it links to elsewhere is not ours to write.
    return {} if (root.directory / "etc/hosts").is_symlink() else {"/etc/hosts": HOSTS}


def _own_system(host: Host) -> list[str]:
    """This machine's /usr, never writable, on a root of its own in memory."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for place in ("/etc/ld.so.cache", "/etc/alternatives"):
        options += ["--ro-bind-try", place, place]
    if host.python_prefix:
        options += ["--ro-bind", host.python_prefix, host.python_prefix]
    return options


def _file_with(content: bytes) -> int:
    """A descriptor from which ``content`` can be read, in memory."""
    fd = os.memfd_create("content")
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd

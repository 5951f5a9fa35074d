"""Checks of walls: the network, this machine's files, the kernel's privileged calls, other boxes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from glmgym.sandbox import BoxFileError, Network
from glmgym_sandboxes.selfcheck.check import Subject, check, equal, holds, refused
from glmgym_sandboxes.selfcheck.observe import bash, count, new_mark, python, until

# vsock reaches the host past the network namespace: refused as a family, or at the latest when connecting to it.
_CALLS = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno(name, *args):
    return ctypes.get_errno() if getattr(libc, name)(*args) == -1 else 0
print(errno("mount", b"none", b"/tmp", b"tmpfs", 0, None), errno("unshare", 0x10000000), errno("ptrace", 16, 1, 0, 0))
try:
    socket.socket(40, socket.SOCK_STREAM).connect((2, 1024))
    print("connected")
except OSError:
    print("refused")
socket.socket(socket.AF_UNIX)
"""


@check("isolation")
async def the_network_is_off(subject: Subject) -> None:
    """hazard 11: a listener on this machine's loopback is not reached from the box, though it is from here."""
    box = await subject.open()
    with _listener() as listener:
        port = listener.getsockname()[1]
        result = await bash(box, f"echo hi > /dev/tcp/127.0.0.1/{port}", timeout_s=5)
        holds(result.exit_code != 0, f"no connection to this machine's port {port}", "exit code 0")
        listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            holds(False, "nobody at this machine's listener", f"a connection from {listener.accept()[1]}")


@check("isolation")
async def the_network_is_what_the_spec_names(subject: Subject) -> None:
    """A named service of this machine is reached, another one is not, and neither is once the network is taken away."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(greet, "127.0.0.1", 0) as named,
        await asyncio.start_server(greet, "127.0.0.1", 0) as other,
    ):
        ports = [server.sockets[0].getsockname()[1] for server in (named, other)]
        box = await subject.open(network=Network(services=(ports[0],)))
        ask = [f"exec 3<>/dev/tcp/127.0.0.1/{port}; read -t 5 line <&3 && echo $line" for port in ports]
        equal([(await bash(box, each)).stdout for each in ask], [b"hello\n", b""], "what the two services said")
        await box.set_network(Network())
        equal([(await bash(box, each)).stdout for each in ask], [b"", b""], "what they said without a network")


@check("isolation")
async def files_of_this_machine_are_invisible(subject: Subject) -> None:
    """hazard 11: a file made on this machine is not in the box, and nothing in the box shows this machine's secrets."""
    box = await subject.open()
    with tempfile.NamedTemporaryFile(prefix="glmgym-secret-") as secret:
        with refused(BoxFileError, "No such file"):
            await box.read(secret.name)
        equal(
            (await bash(box, f"ls -d {secret.name}*; find / -xdev -name '{Path(secret.name).name}' 2>&-")).stdout,
            b"",
            "what is found",
        )
    with refused(BoxFileError, "/etc/shadow"):
        await box.read("/etc/shadow")
    equal((await bash(box, "ls -A /root 2>&-")).stdout, b"", "root's files")


@check("isolation")
async def privileged_system_calls_are_refused(subject: Subject) -> None:
    """hazard 11: mount, new namespaces and tracing the main process fail with EPERM; vsock reaches nobody."""
    result = await python(await subject.open(), _CALLS)
    equal(result.text, "1 1 1\nrefused\n", "errno of mount, unshare and ptrace, and how vsock went")


@check("isolation")
async def a_writable_root_is_the_boxs_own(subject: Subject) -> None:
    """Asked for, root may write to /etc, in its own box: neither another writable root nor a plain box shows it."""
    mark = new_mark()
    box = await subject.open(user="root", writable_root=True)
    equal((await bash(box, f"id -u; echo {mark} > /etc/{mark} && cat /etc/{mark}")).text, f"0\n{mark}\n", "the output")
    for other in (await subject.open(user="root", writable_root=True), await subject.open()):
        holds((await bash(other, f"cat /etc/{mark}")).exit_code != 0, "no such file in another box", "exit code 0")


@check("isolation")
async def two_boxes_share_nothing(subject: Subject) -> None:
    """Neither files nor processes of one box show in another."""
    box, other, mark = await subject.open(), await subject.open(), new_mark()
    await bash(box, f"for d in /work /tmp /dev/shm; do echo {mark} > $d/x; done; bash -c 'exec -a {mark} sleep 300' &")
    equal((await bash(box, "cat /work/x /tmp/x /dev/shm/x")).stdout, f"{mark}\n".encode() * 3, "the first box's files")
    equal((await bash(other, "cat /work/x /tmp/x /dev/shm/x 2>&-")).stdout, b"", "the same files in the other box")
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    equal(await count(other, mark), 0, "the first box's processes in the other")


@contextlib.contextmanager
def _listener() -> Iterator[socket.socket]:
    """A socket that listens on this machine's loopback, and was reached from this side."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname()).close()
        listener.accept()[0].close()
        yield listener

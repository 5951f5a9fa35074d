"""The trusted process in a grading box: starts the tests in a process of their own and signs what that reported.

Standard library only (Python 3.7), run by ``python3 -I -S -c``; it never imports what the policy wrote. The key comes
by its standard input, stays in memory that no other process may read, and goes to nobody: what lies in the results'
file is the runner's word, or there is none. Tests report over a pipe, or, where a program of the task's own starts
them, over a socket: each connection is a session with a nonce of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import zlib
from typing import Any

RESERVED_BYTES = 4 << 20  # kept free for the results, whatever the tests write
MAX_STREAM_BYTES = 64 << 20
MAX_SESSIONS = 64
KEPT_OUTPUT_BYTES = 32 << 10  # of each end of what the tests print, unless the job says more
DRAIN_S = 0.2  # a process that outlives the tests may hold their pipes open
DRAIN_ROUNDS = 16  # and may write for ever: what a pipe or a socket held when the tests ended is read in fewer


def hide() -> None:
    """Make this process's memory and descriptors unreadable to others of the same user (PR_SET_DUMPABLE)."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


class Kept:
    """The head and the tail of a stream."""

    def __init__(self, room: int) -> None:
        self._room, self._head, self._tail = room, b"", b""

    def add(self, data: bytes) -> None:
        free = self._room - len(self._head)
        self._head += data[: max(free, 0)]
        self._tail = (self._tail + data[max(free, 0) :])[-self._room :]

    def text(self) -> str:
        return (self._head + self._tail).decode("utf-8", "replace")


class Session:
    """One process that reports over the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.nonce, self.stream = os.urandom(12).hex(), bytearray()
        self.connection = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(f"{self.nonce}\n".encode())

    def told(self) -> dict[str, str]:
        return {"nonce": self.nonce, "stream": bytes(self.stream).decode("utf-8", "replace")}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the tests; what they reported, printed, and how their process ended."""
    source, sink = os.pipe()
    out, into = os.pipe()
    listener = listen(job["socket"]) if "socket" in job else None
    child = subprocess.Popen(
        job["argv"],
        stdin=subprocess.PIPE,
        stdout=into,
        stderr=into,
        pass_fds=[sink],
        env={**(os.environ if job.get("inherits") else {}), **job["env"]},
        cwd=job["root"],
        start_new_session=True,
    )
    os.close(sink)
    os.close(into)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        if "tests" in job:
            child.stdin.write(json.dumps({**job["tests"], "sink": sink}).encode())
        child.stdin.close()
    stream, output = bytearray(), Kept(job.get("kept_bytes", KEPT_OUTPUT_BYTES))
    sessions = []  # type: list[Session]
    deadline, ended_at, timed_out = time.monotonic() + job["timeout_s"], None, False
    rounds = 0  # since the tests ended
    with selectors.DefaultSelector() as waiting:
        for fd in (source, out):
            os.set_blocking(fd, False)
            waiting.register(fd, selectors.EVENT_READ)
        if listener is not None:
            waiting.register(listener, selectors.EVENT_READ)
        while True:
            ready = waiting.select(0.05)
            for key, _ in ready:
                if listener is not None and key.fileobj is listener:
                    connection = listener.accept()[0]
                    if len(sessions) < MAX_SESSIONS:
                        sessions.append(Session(connection))
                        waiting.register(connection, selectors.EVENT_READ, sessions[-1])
                    continue
                data = receive(key.fd)
                if not data:
                    waiting.unregister(key.fileobj)
                elif key.fd == out:
                    output.add(data)
                else:
                    kept = stream if key.data is None else key.data.stream
                    if len(kept) <= MAX_STREAM_BYTES:
                        kept += data
            now = time.monotonic()
            if child.poll() is not None:
                ended_at = ended_at or now
                rounds += 1
                is_read = not ready or rounds > DRAIN_ROUNDS  # time alone does not tell: we may have been off the CPU
                if (is_read and now - ended_at > DRAIN_S) or not has_pipes(waiting, listener):
                    break
            elif now > deadline:
                timed_out = True
                break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    exit_code = child.wait()
    return {
        "exit": exit_code,
        "timed_out": timed_out,
        "stream": bytes(stream).decode("utf-8", "replace"),
        "output": output.text(),
        "sessions": [each.told() for each in sessions],
    }


def listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def receive(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except ConnectionError:  # a process that was killed
        return b""


def has_pipes(waiting: selectors.BaseSelector, listener: socket.socket | None) -> bool:
    """Whether anybody can still say something."""
    return any(key.fileobj is not listener for key in waiting.get_map().values())


def main() -> None:
    """One job, from standard input to a signed file."""
    hide()
    job = json.loads(sys.stdin.buffer.read())
    key = bytes.fromhex(job.pop("key"))
    fd = os.open(job["results"], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(fd, 0, RESERVED_BYTES)
    body = zlib.compress(json.dumps(run(job)).encode())
    signed = hmac.new(key, body, hashlib.sha256).digest() + body
    while signed:
        signed = signed[os.write(fd, signed) :]
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


if __name__ == "__main__":
    main()

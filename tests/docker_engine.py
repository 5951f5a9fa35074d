"""The Docker engine and the image that tests need: found, or in CI started and built; otherwise a reason to skip.

An engine started here outlives the tests (``--live-restore``, a session of its own): the next run finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from glmgym.errors import SandboxFailure
from glmgym_sandboxes.docker.backend import DEFAULT_SOCKET
from glmgym_sandboxes.docker.engine import Engine
from glmgym_sandboxes.docker.images import DEFAULT_IMAGE
from glmgym_sandboxes.images import ImageMissing, ImageStore

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
# Files of a dead engine below its execution directory that make the next one wait a minute and give up.
STALE = ("containerd.pid", "containerd.toml", "containerd.sock", "containerd.sock.ttrpc", "containerd-debug.sock")


class PrivateEngine:
    """An engine of one test's own, to be killed: all of it lies below ``root``, and it touches no network."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = str(root / "sock")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--data-root", str(self.root / "data"), "--exec-root", str(self.root / "exec")]
        options += ["--pidfile", str(self.root / "pid"), "-H", f"unix://{self.socket}"]
        _remove_stale(self.root / "pid", self.root / "sock", self.root / "exec")
        # Without a network namespace of its own, an engine without a bridge removes the machine's.
        options += ["--bridge=none", "--iptables=false"]
        self._process = _launch(options, self.root / "log", namespace=("unshare", "--net"))
        if problem := _wait_for(self._process, self.socket, self.root / "log"):
            raise RuntimeError(problem)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_TIMEOUT_S)
            self._process = None


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


@pytest.fixture(scope="session")
def docker_works() -> None:
    """Skips where no engine answers and none may be started, with the reason; in CI that is a failure."""
    with _one_at_a_time("engine"):
        socket = os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or DEFAULT_SOCKET
        problem = asyncio.run(ping(socket))
        if problem and in_ci():
            problem = _start_engine(socket)
    _settle(problem)


@pytest.fixture(scope="session")
def base_image() -> None:
    """The default image: skips where it was not built; in CI it is built."""
    problem = ""
    with _one_at_a_time("image"):
        try:
            ImageStore().find(DEFAULT_IMAGE)
        except ImageMissing as missing:
            if in_ci():
                ImageStore().build(DEFAULT_IMAGE)
            else:
                problem = str(missing)
    _settle(problem)


@pytest.fixture(scope="session")
def docker_base(docker_works: None, base_image: None) -> None:
    """An engine, and the image that it takes its boxes from."""


def _settle(problem: str) -> None:
    if problem and in_ci():
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)


@pytest.fixture
def private_engine(docker_works: None) -> Iterator[PrivateEngine]:
    """Started; skips where that is impossible, with the reason; in CI that is a failure."""
    _settle(_cannot_start())
    root = Path(tempfile.mkdtemp(prefix="glmgym-engine-", dir="/tmp"))  # a socket's path must be short
    engine = PrivateEngine(root)
    engine.start()
    yield engine
    engine.close()
    clear(root)


def clear(root: Path) -> None:
    """Remove what an engine that ended left, its own directory mounted among it.

    Its helpers may be ending still: what one of them holds, or removes itself meanwhile, is looked at again.
    """
    end = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
                if (place := Path(line.split()[4])).is_relative_to(root):
                    subprocess.run(["umount", place], check=True)
            shutil.rmtree(root)
        except (OSError, subprocess.CalledProcessError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


async def ping(socket: str) -> str:
    """Why no engine answers there, "" if one does."""
    engine = Engine(socket)
    try:
        await engine.info()
    except SandboxFailure as failure:
        return str(failure)
    finally:
        await engine.close()
    return ""


def _cannot_start() -> str:
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        return "to start a Docker engine takes root and dockerd (Debian: apt-get install docker.io)"
    return ""


def _start_engine(socket: str) -> str:
    """Start the machine's engine, without systemd. Returns what is wrong, "" once it answers."""
    if problem := _cannot_start():
        return f"no Docker engine answers; {problem}"
    log = Path(tempfile.gettempdir(), "glmgym-dockerd.log")
    _remove_stale(Path("/var/run/docker.pid"), Path(socket), Path("/var/run/docker"))
    return _wait_for(_launch(["-H", f"unix://{socket}"], log), socket, log)


def _remove_stale(pid_file: Path, socket: Path, execution: Path) -> None:
    for path in (pid_file, socket, *(execution / "containerd" / name for name in STALE)):
        path.unlink(missing_ok=True)


def _launch(options: list[str], log: Path, *, namespace: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*namespace, "dockerd", "--live-restore", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait_for(process: subprocess.Popen[bytes], socket: str, log: Path) -> str:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        if not asyncio.run(ping(socket)):
            return ""
        time.sleep(0.2)
    last = log.read_text("utf-8", "replace").strip().splitlines()[-5:]
    return "dockerd did not start: " + " | ".join(last)


@contextlib.contextmanager
def _one_at_a_time(what: str) -> Iterator[None]:
    """Among the processes that run the tests side by side."""
    with Path(tempfile.gettempdir(), f"glmgym-tests-{os.getuid()}-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

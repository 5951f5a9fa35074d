"""A podman service of the tests' own: all of it lies in one directory, and the machine's podman is not touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import clear, in_ci, ping

START_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def podman_socket(docker_base: None) -> Iterator[str]:
    """Skips where podman is not installed or may not be used, with the reason; in CI that is a failure."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        problem = "a podman service takes root and podman (Debian: apt-get install podman)"
        pytest.fail(problem) if in_ci() else pytest.skip(problem)
    root = Path(tempfile.mkdtemp(prefix="glmgym-podman-", dir="/tmp"))  # a socket's path must be short
    socket = root / "sock"
    # crun, podman's default, refuses machines with both kinds of control groups.
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    places = ["--root", str(root / "data"), "--runroot", str(root / "run"), "--tmpdir", str(root / "tmp")]
    argv = ["podman", *runtime, "--cgroup-manager", "cgroupfs", *places]
    with (root / "log").open("wb") as log:
        service = subprocess.Popen(
            [*argv, "system", "service", "--time=0", f"unix://{socket}"], stdout=log, stderr=log, start_new_session=True
        )
    end = time.monotonic() + START_TIMEOUT_S
    while asyncio.run(ping(str(socket))):  # its file is there a moment before it listens
        if service.poll() is not None or time.monotonic() > end:
            pytest.fail("podman's service did not start: " + (root / "log").read_text("utf-8", "replace")[-500:])
        time.sleep(0.1)
    yield str(socket)
    service.terminate()
    service.wait(START_TIMEOUT_S)
    while any(str(root) in text for text in _command_lines()):  # it cleans up after each container when it pleases
        time.sleep(0.1)
    clear(root)


def _command_lines() -> Iterator[str]:
    for entry in os.listdir("/proc"):  # a pattern would look at the files: ESRCH of one that ends is no end of that
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                yield Path("/proc", entry, "cmdline").read_text("utf-8", "replace")

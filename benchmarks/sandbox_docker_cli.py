"""The ``docker`` command line: ``run -d``, ``exec`` and ``cp``, as ``sandbox.py`` measures them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sandbox_driver import run_options, serve


class DockerCli:
    async def open(self) -> str:
        inside = ["--network", "none", "--user", "1000", sys.argv[1], "sleep", "infinity"]
        return (await call(["docker", "run", "-d", *run_options(), *inside])).decode().strip()

    async def run(self, box: str, argv: Sequence[str], timeout_s: float = 30.0) -> bytes:
        try:
            return await call(["docker", "exec", box, *argv], timeout_s)
        except subprocess.TimeoutExpired:
            return b""

    async def write_and_read(self, box: str, data: bytes) -> bytes:
        with TemporaryDirectory() as scratch:
            sent, received = Path(scratch) / "sent", Path(scratch) / "received"
            sent.write_bytes(data)
            await call(["docker", "cp", "-q", str(sent), f"{box}:/tmp/blob"])
            await call(["docker", "cp", "-q", f"{box}:/tmp/blob", str(received)])
            return received.read_bytes()

    async def close(self, box: str) -> None:
        await call(["docker", "rm", "-fv", box])

    def places(self, box: str) -> list[str]:
        return []


async def call(argv: list[str], timeout_s: float = 60.0) -> bytes:
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[:2])} exited with {done.returncode}: {done.stderr.decode()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    serve(DockerCli)

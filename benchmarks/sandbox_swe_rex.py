"""swe-rex: ``DockerDeployment`` and ``execute``, as ``sandbox.py`` measures them.

Its server has to be in the image (``sandbox_peers.py`` puts it there) and is reached over a published port, so its
containers have a network, where the others have none. Files are text.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from sandbox_driver import run_options, serve
from swerex.deployment.docker import DockerDeployment
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import Command, ReadFileRequest, WriteFileRequest


class SweRex:
    def __init__(self) -> None:
        # Waiting for a server it sleeps without yielding, longer than the time it gives an answer: of two starts in
        # one event loop neither ever succeeds.
        self._starting = asyncio.Lock()

    async def open(self) -> DockerDeployment:
        image, network = sys.argv[1:]
        box = DockerDeployment(image=image, pull="never", docker_args=[*run_options(), "--network", network])
        async with self._starting:
            await box.start()
        return box

    async def run(self, box: DockerDeployment, argv: Sequence[str], timeout_s: float = 30.0) -> str:
        try:
            return (await box.runtime.execute(Command(command=list(argv), timeout=timeout_s))).stdout
        except CommandTimeoutError:
            return ""

    async def write_and_read(self, box: DockerDeployment, data: bytes) -> bytes:
        await box.runtime.write_file(WriteFileRequest(path="/tmp/blob", content=data.decode()))
        return (await box.runtime.read_file(ReadFileRequest(path="/tmp/blob"))).content.encode()

    async def close(self, box: DockerDeployment) -> None:
        await box.stop()

    def places(self, box: DockerDeployment) -> list[str]:
        return []


if __name__ == "__main__":
    serve(SweRex)

"""The Docker SDK for Python: ``containers.run``, ``exec_run`` and archives, as ``sandbox.py`` measures them."""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
from collections.abc import Sequence

import docker
from docker.models.containers import Container
from sandbox_driver import label, serve


class DockerPy:
    def __init__(self) -> None:
        self._client = docker.from_env(max_pool_size=64)

    async def open(self) -> Container:
        return await asyncio.to_thread(self._open)

    async def run(self, box: Container, argv: Sequence[str], timeout_s: float | None = None) -> bytes:
        # The SDK has no timeout of its own; this is how its users bound a command.
        bounded = list(argv) if timeout_s is None else ["timeout", "-k", "1", str(timeout_s), *argv]
        result = await asyncio.to_thread(box.exec_run, bounded)
        return result.output

    async def write_and_read(self, box: Container, data: bytes) -> bytes:
        return await asyncio.to_thread(self._write_and_read, box, data)

    async def close(self, box: Container) -> None:
        await asyncio.to_thread(box.remove, force=True, v=True)

    def places(self, box: Container) -> list[str]:
        return []

    def _open(self) -> Container:
        return self._client.containers.run(
            sys.argv[1],
            ["sleep", "infinity"],
            detach=True,
            init=True,
            labels=dict([label().split("=")]),
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=128,
            mem_limit="512m",
            memswap_limit="512m",
            nano_cpus=1_000_000_000,
            user="1000",
        )

    def _write_and_read(self, box: Container, data: bytes) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("blob")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        box.put_archive("/tmp", packed.getvalue())
        chunks, _ = box.get_archive("/tmp/blob")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            found = archive.extractfile("blob")
            assert found is not None
            return found.read()


if __name__ == "__main__":
    serve(DockerPy)

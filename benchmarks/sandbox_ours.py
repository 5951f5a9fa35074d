"""Our boxes, ``docker IMAGE`` or ``bubblewrap``, as ``sandbox.py`` measures them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox_driver import serve

from glmgym.owner import Owner
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider, Shell


class Ours:
    def __init__(self) -> None:
        backend = importlib.import_module(f"glmgym_sandboxes.{sys.argv[1]}")
        self._cold: SandboxProvider = backend.open_provider({"warm": 0})
        self._warm: SandboxProvider = backend.open_provider({"warm": 4})
        self._spec = BoxSpec(image=sys.argv[2] if len(sys.argv) > 2 else "")
        self._shells: dict[str, Shell] = {}

    async def open(self) -> Sandbox:
        return await self._cold.open(self._spec)

    async def open_warm(self) -> Sandbox:
        return await self._warm.open(self._spec)

    async def run(self, box: Sandbox, argv: Sequence[str], timeout_s: float = 30.0) -> bytes:
        return (await box.run(argv, timeout_s=timeout_s)).stdout

    async def run_in_shell(self, box: Sandbox, command: str) -> None:
        if box.id not in self._shells:
            self._shells[box.id] = await box.shell()
        await self._shells[box.id].run(command)

    async def write_and_read(self, box: Sandbox, data: bytes) -> bytes:
        await box.write("/work/blob", data)
        return await box.read("/work/blob")

    async def close(self, box: Sandbox) -> None:
        await box.close()

    async def close_pool(self) -> None:
        await self._warm.close()
        await self._cold.close()

    def places(self, box: Sandbox) -> list[str]:
        return [str(found) for found in Path("/tmp").glob(f"glmgym-*/{Owner.current()}*")]


if __name__ == "__main__":
    serve(Ours)

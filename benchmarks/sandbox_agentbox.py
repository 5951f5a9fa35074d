"""agentbox-rl: ``SandboxManager.create`` and ``Sandbox.exec`` with its defaults, as ``sandbox.py`` measures them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agentbox.config import SandboxConfig
from agentbox.sandbox.manager import SandboxManager
from agentbox.sandbox.types import Sandbox
from sandbox_driver import label, serve


class AgentBox:
    def __init__(self) -> None:
        # It would install pytest where an image has no command named python, over the network.
        labels = dict([label().split("=")])
        config = SandboxConfig(image=sys.argv[1], auto_pull=False, ensure_pytest=False, labels=labels)
        self._manager = SandboxManager(config)

    async def open(self) -> Sandbox:
        return await self._manager.create(task_id="bench", run_id="bench")

    async def run(self, box: Sandbox, argv: Sequence[str], timeout_s: float = 30.0) -> str:
        return (await box.exec(list(argv), timeout_s=timeout_s)).stdout

    async def write_and_read(self, box: Sandbox, data: bytes) -> bytes:
        await box.write_bytes("blob", data)
        return await box.read_bytes("blob")

    async def close(self, box: Sandbox) -> None:
        await self._manager.destroy(box)

    def places(self, box: Sandbox) -> list[str]:
        return []


if __name__ == "__main__":
    serve(AgentBox)

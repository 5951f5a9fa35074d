"""A box that dies: whoever asks it for anything, at whatever moment, learns why."""

from __future__ import annotations

import asyncio
import sys

import pytest

from glmgym.errors import SandboxDead
from glmgym.sandbox import BoxSpec, Network
from glmgym_sandboxes import agent
from glmgym_sandboxes.client import AgentBox, Transport

HELLO = "import sys; sys.stdout.buffer.write({!r}); sys.stdout.flush(); sys.stdin.read(1)"


async def test_who_asks_while_the_box_is_being_destroyed_hears_its_last_words_too() -> None:
    """What an engine says of a container's end comes late: a call just before it said only that the agent ended."""
    hello = agent.frame(0, agent.HELLO)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HELLO.format(hello), **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    destroying = asyncio.Event()

    async def destroy() -> str:
        destroying.set()
        await process.wait()
        await asyncio.sleep(0.1)
        return "no answer from the engine"

    box = AgentBox("late", "", BoxSpec(), Transport(process.stdout, process.stdin, destroy))
    await box.ready(20.0)
    process.stdin.write(b"x")  # its agent ends
    await destroying.wait()
    for call in (box.read("/x"), box.run(["true"]), box.set_network(Network())):
        with pytest.raises(SandboxDead, match=r"box late is gone: its agent ended \(no answer from the engine\)"):
            await call
    await box.close()

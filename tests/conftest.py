"""What several test files need: a component that must be there, or a reason why its tests did not run."""

from __future__ import annotations

import asyncio
import os

import pytest
from docker_engine import docker_base, docker_works, private_engine

from glmgym_sandboxes.bubblewrap import probe

__all__ = ["docker_base", "docker_works", "private_engine"]  # fixtures of docker_engine.py


@pytest.fixture(scope="session")
def bubblewrap_works() -> None:
    """Skips where bubblewrap cannot work, with the reason; in CI that is a failure."""
    problem = asyncio.run(probe())
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)

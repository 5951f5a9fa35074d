"""What several test files need: a component that must be there, or a reason why its tests did not run."""

from __future__ import annotations

import asyncio
import os

import hypothesis
import pytest
from docker_engine import base_image, docker_base, docker_works, private_engine
from podman_service import podman_socket

from glmgym.errors import SandboxFailure
from glmgym.sandbox import probe
from glmgym_sandboxes.bubblewrap import open_provider

__all__ = ["base_image", "docker_base", "docker_works", "podman_socket", "private_engine"]  # fixtures of other files

# An example may take any time: hypothesis' own 0.2 s pass on a busy machine, and it turns them off in CI alone.
hypothesis.settings.register_profile("unhurried", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def bubblewrap_works() -> None:
    """Skips where bubblewrap cannot work, with the reason; in CI that is a failure."""
    problem = asyncio.run(_probe())
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)


@pytest.fixture(scope="session")
def base_works(bubblewrap_works: None, base_image: None) -> None:
    """Bubblewrap boxes over the default image."""


async def _probe() -> str:
    try:
        provider = open_provider({"warm": 0})
    except SandboxFailure as failure:
        return str(failure)
    problem = await probe(provider)
    await provider.close()
    return problem

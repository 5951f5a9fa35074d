"""The behaviour every sandbox backend owes, as two classes to inherit: the checks of ``glmgym_sandboxes.selfcheck``.

A backend's test class gives ``open_box``; whatever the spec asks for, the box that comes must keep the rules. What
``glmgym sandbox self-check`` runs and what is tested here is the same, so it stands there and not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import ClassVar

import pytest

from glmgym_sandboxes.client import AgentBox
from glmgym_sandboxes.pool import WarmPool
from glmgym_sandboxes.selfcheck import CHECKS, Check, NotApplicable, Subject
from glmgym_sandboxes.selfcheck.check import OpenBox, Unmet
from glmgym_sandboxes.selfcheck.observe import bash, count, host_processes, new_mark, number, until
from glmgym_sandboxes.selfcheck.trees import tree_of

__all__ = [
    "FileContract",
    "OpenBox",
    "SandboxContract",
    "bash",
    "count",
    "host_processes",
    "new_mark",
    "number",
    "tree_of",
    "until",
    "warm_boxes",
]


async def warm_boxes(pool: WarmPool) -> list[AgentBox]:
    """The boxes that wait for a user, once there are any."""
    end = time.monotonic() + 60
    while not (ready := [box for boxes in pool._ready.values() for box in boxes]):
        assert time.monotonic() < end, "no warm box came"
        await asyncio.sleep(0.02)
    return ready


def each(*, runs_commands: bool) -> pytest.MarkDecorator:
    chosen = [check for check in CHECKS if check.runs_commands is runs_commands]
    return pytest.mark.parametrize("check", chosen, ids=[check.name for check in chosen])


async def prove(check: Check, open_box: OpenBox, exempt: frozenset[str]) -> None:
    subject = Subject(open_box)
    try:
        # A rule that boxes opened this way give up must be seen broken, or it need not be given up.
        with pytest.raises(Unmet) if check.name in exempt else contextlib.nullcontext():
            await check.body(subject)
    except NotApplicable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
    finally:
        await subject.close()


class FileContract:
    """Files, trees and forks; holds for a box that runs nothing, too."""

    exempt: ClassVar[frozenset[str]] = frozenset()  # names of checks that do not hold for boxes opened as here

    @each(runs_commands=False)
    async def test_files(self, check: Check, open_box: OpenBox) -> None:
        await prove(check, open_box, self.exempt)


class SandboxContract(FileContract):
    """A box with real processes in it."""

    @each(runs_commands=True)
    async def test_commands(self, check: Check, open_box: OpenBox) -> None:
        await prove(check, open_box, self.exempt)

"""What a trial keeps of the policy's box: the paths a task names, taken by ``glmgym_envs.grading`` without trusting it.

What was refused (a symlink, a device, more than the bounds allow) or is missing is not there for the tests, and told.
Contents pass through the disk in pieces, so their size costs no memory.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.errors import ScorerFailure
from glmgym.sandbox import BoxFileError, Sandbox
from glmgym_envs.grading import modes
from glmgym_envs.harbor.schema import Artifact

ALWAYS = Artifact(source="/logs/artifacts", destination="logs")  # collected of every task
MAX_BYTES = 1 << 30  # of one artifact


@dataclass(frozen=True, slots=True)
class Collected:
    """One artifact. ``path`` is a directory of this machine that holds the file, or the content of the directory."""

    artifact: Artifact
    path: Path | None  # None: it was not taken
    is_file: bool = False
    notes: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        """Its entry in ``artifacts/manifest.json``."""
        files = [] if self.path is None else [file for file in self.path.rglob("*") if file.is_file()]
        return {
            "source": self.artifact.source,
            "destination": self.artifact.place,
            "type": None if self.path is None else "file" if self.is_file else "directory",
            "status": "missing" if self.path is None else "ok",
            "bytes": sum(file.stat().st_size for file in files),
            "notes": list(self.notes),
        }


async def gather(box: Sandbox, artifacts: Sequence[Artifact], target: Path) -> tuple[Collected, ...]:
    """Copy what ``artifacts`` name, and ``/logs/artifacts``, from ``box`` below ``target``.

    Raises:
        SandboxDead: the box is gone.
    """
    wanted = (*artifacts, *(() if any(each.source == ALWAYS.source for each in artifacts) else (ALWAYS,)))
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    return tuple([await _take(box, artifact, target / str(n)) for n, artifact in enumerate(wanted)])


async def put(box: Sandbox, collected: Sequence[Collected]) -> None:
    """Put what was collected into another box, at the places it had.

    Raises:
        ScorerFailure: it does not go in there.
    """
    for each in collected:
        if each.path is None:
            continue
        source = posixpath.normpath(each.artifact.source)
        try:
            await box.put_tree(each.path, posixpath.dirname(source) if each.is_file else source)
        except BoxFileError as error:
            raise ScorerFailure(f"artifact {source} cannot be put into the grading box: {error}") from error


async def _take(box: Sandbox, artifact: Artifact, target: Path) -> Collected:
    is_file = (await box.run(["/bin/sh", "-c", '[ -f "$1" ]', "sh", artifact.source])).exit_code == 0
    wanted = modes.Artifact(artifact.source, exclude=artifact.exclude)
    notes = await modes.collect(box, wanted, target, max_bytes=MAX_BYTES)
    taken = await asyncio.to_thread(target.is_dir)
    told = () if artifact is ALWAYS and not taken else notes
    return Collected(artifact, target if taken else None, is_file, told)

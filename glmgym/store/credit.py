"""Advantages of trained tokens, kept beside the trajectories they are about: one file per optimiser step.

Owned here: where and how they lie on disk. Credit is never written into a record; it is an algorithm's opinion at one
step, so a step that a kill undid is simply written again. A file costs less than half of what the store keeps of the
same tokens (id, log-prob, version).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmgym.errors import StoreError

Advantages = NDArray[np.float32]  # [sampled] of one segment; NaN where the algorithm left a sampled token out


def write_credit(directory: Path, step: int, advantages: Mapping[tuple[str, int], Advantages]) -> None:
    """Keep a step's advantages by (trajectory id, segment index). The file appears whole or not at all.

    Raises:
        StoreError: the disk is full or read-only.
    """
    path = _path(directory, step)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(exist_ok=True)
        with partial.open("wb") as file:
            np.savez(file, **{f"{id}/{segment}": values for (id, segment), values in advantages.items()})  # type: ignore[arg-type]
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()  # what it holds is needed elsewhere
        raise StoreError(f"cannot write {path}: {error.strerror}; make room and run again with --resume") from error


def read_credit(directory: Path, id: str, step: int | None) -> dict[int, Advantages]:
    """A trajectory's advantages by segment index, as of the step that trained it; empty when none were kept.

    Raises:
        StoreError: the file is damaged.
    """
    if step is None or not (path := _path(directory, step)).is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as kept:
            names = [name for name in kept.files if name.rpartition("/")[0] == id]
            return {int(name.rpartition("/")[2]): kept[name] for name in names}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _path(directory: Path, step: int) -> Path:
    return directory / "credit" / f"step-{step:06d}.npz"

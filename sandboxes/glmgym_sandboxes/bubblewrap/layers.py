"""Copies of boxes' upper layers on disk, for the moment between a fork and the start of its last sibling."""

from __future__ import annotations

import subprocess
from pathlib import Path

from glmgym import scratch


def copy_in(layer: str) -> Path:
    """Copy an overlay's upper layer with its whiteouts (which are devices), modes, owners, times and attributes.

    Sockets are left out: without the process that listens they are nothing. ``scratch.remove`` drops the copy.

    Raises:
        OSError: it cannot be copied; nothing is left then.
    """
    place = scratch.new_place()
    for command in (["cp", "-a", f"{layer}/.", str(place)], ["find", str(place), "-type", "s", "-delete"]):
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            scratch.remove(place)
            raise OSError(f"{command[0]} ended with {said.returncode}: {said.stderr.strip()[:500]}")
    return place

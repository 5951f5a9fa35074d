"""What a box needs on disk while it lives: ``OWNER/N`` below the scratch directory of ``leftovers``.

``glmgym gc`` removes those of dead owners. Blocking: call it off the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from pathlib import Path

from glmgym_sandboxes.leftovers import scratch_root
from glmgym_sandboxes.owner import Owner

_numbers = itertools.count()
_changing = threading.Lock()  # held where the owner's directory comes or goes


def new_place(mode: int = 0o700) -> Path:
    """A new, empty directory. Those above it can be passed through, not listed: ``mode`` says who may enter this one.

    Raises:
        OSError: it cannot be made, or somebody else's directory is in its place.
    """
    root = scratch_root()
    place = root / str(Owner.current()) / str(next(_numbers))
    with _changing:
        root.mkdir(exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.getuid():  # /tmp is open to all
            raise PermissionError(f"{root} belongs to somebody else; remove it")
        place.parent.mkdir(exist_ok=True)
        for above in (root, place.parent):
            above.chmod(0o711)
        place.mkdir(mode=0o700)
        place.chmod(mode)
    return place


def remove(place: Path) -> None:
    """Remove a place, and its owner's directory after the last."""
    shutil.rmtree(place, ignore_errors=True)
    with _changing, contextlib.suppress(OSError):  # another place is in there
        place.parent.rmdir()

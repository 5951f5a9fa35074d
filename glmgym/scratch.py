"""What boxes and episodes need on disk while they live: ``OWNER/N`` below one directory of this user's.

``glmgym gc`` removes those of dead owners, so that a killed process leaves nothing for good. Blocking, but for
``async_temporary``: call it off the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from glmgym.owner import Owner

_numbers = itertools.count()
_changing = threading.Lock()  # held where the owner's directory comes or goes


def root() -> Path:
    """Where this user's processes keep theirs, in one directory per owner."""
    return Path("/tmp", f"glmgym-{os.getuid()}")


def new_place(mode: int = 0o700) -> Path:
    """A new, empty directory. Those above it can be passed through, not listed: ``mode`` says who may enter this one.

    Raises:
        OSError: it cannot be made, or somebody else's directory is in its place.
    """
    ours = root()
    place = ours / str(Owner.current()) / str(next(_numbers))
    with _changing:
        ours.mkdir(exist_ok=True)
        if ours.is_symlink() or ours.stat().st_uid != os.getuid():  # /tmp is open to all
            raise PermissionError(f"{ours} belongs to somebody else; remove it")
        place.parent.mkdir(exist_ok=True)
        for above in (ours, place.parent):
            above.chmod(0o711)
        place.mkdir(mode=0o700)
        place.chmod(mode)
    return place


@contextlib.asynccontextmanager
async def async_temporary() -> AsyncIterator[Path]:
    """``temporary`` off the event loop."""
    place = await asyncio.to_thread(new_place)
    try:
        yield place
    finally:
        await asyncio.to_thread(remove, place)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A new place that is removed on leaving. Raises OSError as ``new_place`` does."""
    place = new_place()
    try:
        yield place
    finally:
        remove(place)


def remove(place: Path) -> None:
    """Remove a place, and its owner's directory after the last."""
    shutil.rmtree(place, ignore_errors=True)
    with _changing, contextlib.suppress(OSError):  # another place is in there
        place.parent.rmdir()

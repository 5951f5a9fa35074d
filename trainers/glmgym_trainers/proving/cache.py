"""What is expensive and shared, kept on disk under the digest of all it was made from: warm starts, teachers, critics.

The key of a thing is the text of its settings and the source of the modules that make it, so nothing stale is ever
found, and two processes that need the same thing make it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def default_root() -> Path:
    """``$XDG_CACHE_HOME/glmgym/proving``, or below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glmgym" / "proving"


def digest(*parts: object) -> str:
    """A short hex digest of the parts' texts; a module stands for its source."""
    texts = [inspect.getsource(part) if isinstance(part, ModuleType) else repr(part) for part in parts]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


class Cache:
    """Weights by name and key. Safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def weights(self, name: str, key: str, make: Callable[[], Weights]) -> dict[str, Tensor]:
        """The weights kept under ``name`` and ``key``; made, and kept, if there are none."""
        path = self.root / f"{name}-{key}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                half = path.with_suffix(".half")
                torch.save({name: tensor.detach().clone() for name, tensor in make().items()}, half)
                half.replace(path)  # whole or not at all, whenever the process is killed
        found: dict[str, Tensor] = torch.load(path, weights_only=True)
        return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

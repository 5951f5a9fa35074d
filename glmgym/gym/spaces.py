"""The space of texts that people and policies write: Gymnasium's own ``Text`` has no blanks, line ends or Chinese."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

HARMLESS = ('{"tool": "noop", "arguments": {}}', '{"tool": "noop", "arguments": {"why": "nothing"}}')


class Unicode(gymnasium.Space[str]):
    """Any text of up to ``max_length`` characters without surrogates; ``sample`` draws from ``samples``."""

    def __init__(
        self,
        max_length: int = 1_000_000,
        samples: Sequence[str] = HARMLESS,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.max_length = max_length
        self.samples = tuple(samples)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """One of ``samples``; there is nothing to mask."""
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length and not any("\ud800" <= c <= "\udfff" for c in x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and (self.max_length, self.samples) == (other.max_length, other.samples)

    def __hash__(self) -> int:
        return hash((self.max_length, self.samples))

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

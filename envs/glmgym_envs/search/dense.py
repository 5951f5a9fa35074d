"""A dense ranking without a model: hashed TF-IDF under a random projection.

Words and their character trigrams are hashed into buckets, weighted by TF-IDF and projected onto a few hundred random
directions, which keeps inner products in the mean (Johnson and Lindenstrauss 1984). It forgives spelling, which BM25
does not; it knows nothing of meaning, which a trained encoder would.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_BUCKETS = 1 << 15
_DIMENSIONS = 256
_CHARS = 600  # of a text that are hashed


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """``weights``: [buckets] inverse document frequencies."""

    weights: NDArray[np.float32]

    @property
    def dimensions(self) -> int:
        return _DIMENSIONS

    def vector(self, text: str) -> NDArray[np.float32]:
        """[dimensions], of length 1; all zeros for a text without a word."""
        counts = _features(text)
        if not counts:
            return np.zeros(_DIMENSIONS, np.float32)
        buckets = np.fromiter(counts, np.int64, len(counts))
        tf = 1.0 + np.log(np.fromiter(counts.values(), np.float32, len(counts)))
        projected = (tf * self.weights[buckets]).astype(np.float32) @ _directions()[buckets]
        length = float(np.linalg.norm(projected))
        return projected / length if length else projected


def fit(texts: Sequence[str]) -> tuple[Projection, NDArray[np.float32]]:
    """The projection with the weights of these texts, and their vectors [texts, dimensions]."""
    frequency = np.zeros(_BUCKETS, np.float32)
    for text in texts:
        frequency[list(_features(text))] += 1
    projection = Projection(np.log((1 + len(texts)) / (1 + frequency)).astype(np.float32))
    vectors = [projection.vector(text) for text in texts]
    return projection, np.stack(vectors) if vectors else np.zeros((0, _DIMENSIONS), np.float32)


def _features(text: str) -> Counter[int]:
    words = re.findall(r"[^\W_]+", text[:_CHARS].lower())
    grams = (f"#{word}#"[i : i + 3] for word in words for i in range(len(word)))
    return Counter(zlib.crc32(feature.encode()) % _BUCKETS for feature in (*words, *grams))


@cache
def _directions() -> NDArray[np.float32]:
    """[buckets, dimensions] random normal numbers, the same in every process."""
    shape = (_BUCKETS, _DIMENSIONS)
    return np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(math.sqrt(_DIMENSIONS))

"""Documents: what a search corpus is made of, how it is stored, and how a long one is read in pages.

A corpus on disk is JSONL, one document a line, in the order of ids. Owned here as well: where built corpora live.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from glmgym.errors import ConfigError

PAGE_CHARS = 2_000  # most characters of one page


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``part`` is what it is kept together with when questions are divided into train and held-out."""

    id: str
    title: str
    text: str
    source: str  # the package it comes from, with its version
    licence: str
    part: str

    def __post_init__(self) -> None:
        if not self.id or not self.title or not self.text.strip():
            raise ValueError(f"document {self.id!r}: id, title and text must not be empty")


def pages(text: str) -> list[str]:
    """The text in pages of at most ``PAGE_CHARS``, cut at the end of a line or else of a word; joined they are it."""
    found = []
    while len(text) > PAGE_CHARS:
        cut = max(text.rfind("\n", 0, PAGE_CHARS), text.rfind(" ", 0, PAGE_CHARS)) + 1 or PAGE_CHARS
        line = text.rfind("\n", PAGE_CHARS // 2, PAGE_CHARS) + 1
        cut = line or cut
        found.append(text[:cut])
        text = text[cut:]
    return [*found, text]


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Write a corpus, sorted by id, whole or not at all; returns the number of documents.

    Raises:
        ValueError: two documents share an id.
    """
    ordered = sorted(documents, key=lambda document: document.id)
    for one, two in pairwise(ordered):
        if one.id == two.id:
            raise ValueError(f"two documents have the id {one.id!r}")
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in ordered)
    partial.replace(path)
    return len(ordered)


def read_documents(path: Path) -> list[Document]:
    """A stored corpus.

    Raises:
        ConfigError: the file cannot be read, or a line is no document; the message names the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"corpus {path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Document(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"corpus {path}, line {number}: {error}") from error
    return found


def squeeze(text: str) -> str:
    """One line, single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def cache_root() -> Path:
    """``glmgym/search`` below $XDG_CACHE_HOME or ~/.cache; for root below /var/cache, like every cache of glmgym."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "glmgym/search"
    return (Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache") / "glmgym/search"

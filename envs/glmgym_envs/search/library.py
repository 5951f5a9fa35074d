"""What an episode searches in: an index opened on first use, and never waited for on the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from glmgym_envs.search.documents import Document, cache_root, read_documents
from glmgym_envs.search.index import FORMAT, Hit, Index, build_index
from glmgym_envs.search.questions import data_file

R = TypeVar("R")

_THREADS = 4  # SQLite lets go of the interpreter while it searches


class Retriever(Protocol):
    """Anything that finds text for a query."""

    async def search(self, query: str, k: int) -> list[Hit]: ...


class Library:
    """A retriever whose documents can be opened; shared by all episodes of a process.

    Args:
        open_index: called once, in a thread, when the first question is asked.
    """

    def __init__(self, open_index: Callable[[], Index]) -> None:
        self._open_index = open_index
        self._lock = threading.Lock()
        self._index: Index | None = None
        # Its own threads: those of the event loop may all be waiting for something that waits for this.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="search")

    @property
    def index(self) -> Index:
        """The index; blocks while it is opened.

        Raises:
            ConfigError: there is none, and how to build one.
        """
        with self._lock:
            if self._index is None:
                self._index = self._open_index()
            return self._index

    async def search(self, query: str, k: int) -> list[Hit]:
        return await self._off_the_loop(lambda: self.index.search(query, k))

    async def document(self, id: str) -> Document | None:
        return await self._off_the_loop(lambda: self.index.document(id))

    async def _off_the_loop(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def built_library() -> Library:
    """The corpus that ``python -m glmgym_envs.search build`` leaves in the cache."""
    return Library(lambda: Index(cache_root() / "index.sqlite"))


def mini_library() -> Library:
    """The small corpus that ships with glmgym; its index is written into the cache once."""
    return Library(open_mini_index)


def open_mini_index() -> Index:
    """The index of the small corpus, named by its content."""
    corpus = data_file("mini.jsonl")
    digest = hashlib.sha256(corpus.read_bytes()).hexdigest()[:16]
    path = cache_root() / f"mini-{FORMAT}-{digest}.sqlite"
    if not path.exists():
        build_index(path, read_documents(corpus))
    return Index(path)

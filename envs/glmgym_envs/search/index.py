"""A full-text index of a corpus: SQLite's FTS5, ranked by BM25, one file, opened for reading only.

What is ranked is a page of a document, so that a hit says which page to open. A document whose title is the query, but
for a parenthesis at its end, comes first. Any text is a valid query.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmgym.errors import ConfigError
from glmgym_envs.search.dense import Projection, fit
from glmgym_envs.search.documents import Document, pages, squeeze

MAX_TERMS = 48  # distinct words of a query that are looked up; the first ones count
MAX_PAGES_RANKED = 20_000  # for one query, about: its most common words are not looked up beyond
TITLE_WEIGHT = 4.0  # a word in the title counts as much as this many in the text
RRF = 60  # the constant of reciprocal rank fusion (Cormack, Clarke and Buettcher 2009)
_POOL = 50  # hits taken of each ranking before they are merged
FORMAT = 2  # of the file; another one is built anew
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by for from has have how in is it its of on or that the this to was were what when "
        "where which who whose why will with",
    )
)
_SCHEMA = """
CREATE TABLE documents (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, name TEXT, title TEXT, text TEXT, source TEXT, licence TEXT, part TEXT);
CREATE INDEX names ON documents (name);
CREATE TABLE pages (number INTEGER PRIMARY KEY, document INTEGER, page INTEGER);
CREATE INDEX firsts ON pages (document) WHERE page = 1;
CREATE VIRTUAL TABLE words USING fts5(title, body, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE terms (word TEXT PRIMARY KEY, pages INTEGER) WITHOUT ROWID;
CREATE TABLE dense (name TEXT PRIMARY KEY, value BLOB);
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """One page that fits a query. ``score``: higher is better; comparable within one answer only."""

    document: str
    page: int  # from 1
    title: str
    text: str
    score: float


class Index:
    """An opened index. May be used from many threads: each has a connection of its own.

    Raises:
        ConfigError: there is no such file, or it is no index of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        if not path.is_file():
            raise ConfigError(f"no search index at {path}; build one with: python -m glmgym_envs.search build")
        try:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path} is no search index: {error}") from error
        if version != FORMAT:
            raise ConfigError(f"{path} has format {version}, not {FORMAT}; remove it and build it again")
        self._projection, self._vectors = self._load_dense()

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM documents").fetchone()[0])

    @property
    def is_dense(self) -> bool:
        """Whether rankings of vectors are merged in."""
        return self._projection is not None

    def search(self, query: str, k: int) -> list[Hit]:
        """The best pages for a query, at most ``k``; none if nothing in it is a word of the corpus.

        Raises:
            ValueError: ``k`` is below 1.
        """
        if k < 1:
            raise ValueError(f"k={k}: ask for at least 1 hit")
        match = self._match(query)
        if self._projection is None:
            ranked = self._by_words(match, k)
        else:
            ranked = _fuse([[n for n, _ in self._by_words(match, _POOL)], self._by_vector(query, _POOL)])[:k]
        named = self._by_name(query, k)
        top = 1.0 + (ranked[0][1] if ranked else 0.0)
        ranked = [*((number, top) for number in named), *(pair for pair in ranked if pair[0] not in named)]
        return [self._hit(number, score) for number, score in ranked[:k]]

    def document(self, id: str) -> Document | None:
        """The document of that id; ``None`` if there is none."""
        row = self._connection.execute(
            "SELECT id, title, text, source, licence, part FROM documents WHERE id = ?", (id,)
        ).fetchone()
        return Document(*row) if row else None

    @property
    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(f"file:{self.path}?mode=ro&immutable=1", uri=True)
        connection: sqlite3.Connection = self._local.connection
        return connection

    def _by_words(self, match: str, k: int) -> list[tuple[int, float]]:
        if not match:
            return []
        # FTS5's bm25 is negative, the best hit the lowest; ties go by number so that two runs agree.
        rows = self._connection.execute(
            "SELECT rowid, bm25(words, ?, 1.0) AS rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?",
            (TITLE_WEIGHT, match, k),
        )
        return [(number, -rank) for number, rank in rows]

    def _match(self, query: str) -> str:
        """An FTS5 expression: any of the query's words, each quoted, so that no character of it is syntax.

        Rare words first; what many pages have says little and costs most, so words beyond the limit are left out.
        """
        words = list(dict.fromkeys(re.findall(r"[^\W_]+", query)))
        telling = [word for word in words if word not in _STOP] or words  # one in capitals is no stop word: AND, IT
        counted = sorted((self._count(word), at, word) for at, word in enumerate(telling[:MAX_TERMS]))
        totals = accumulate(count for count, _, _ in counted)
        kept = [word for (_, _, word), total in zip(counted, totals, strict=True) if total <= MAX_PAGES_RANKED]
        return " OR ".join(f'"{word}"' for word in kept or [word for _, _, word in counted[:1]])

    def _count(self, word: str) -> int:
        """Pages that have a word, as it is spelt."""
        row = self._connection.execute("SELECT pages FROM terms WHERE word = ?", (word.casefold(),)).fetchone()
        return int(row[0]) if row else 0

    def _by_name(self, query: str, k: int) -> list[int]:
        """First pages of the documents that are called so."""
        rows = self._connection.execute(
            "SELECT p.number FROM documents d JOIN pages p ON p.document = d.number AND p.page = 1 "
            "WHERE d.name = ? ORDER BY d.number LIMIT ?",
            (_name(query), k),
        )
        return [number for (number,) in rows]

    def _by_vector(self, query: str, k: int) -> list[int]:
        assert self._projection is not None
        similarity = self._vectors @ self._projection.vector(query).astype(np.float32)
        best = np.argsort(-similarity, kind="stable")[:k]
        return [int(number) + 1 for number in best if similarity[number] > 0]

    def _hit(self, number: int, score: float) -> Hit:
        id, title, page, body = self._connection.execute(
            "SELECT d.id, d.title, p.page, w.body FROM pages p JOIN documents d ON d.number = p.document "
            "JOIN words w ON w.rowid = p.number WHERE p.number = ?",
            (number,),
        ).fetchone()
        return Hit(id, page, title, body, score)

    def _load_dense(self) -> tuple[Projection | None, NDArray[np.float32]]:
        stored = dict(self._connection.execute("SELECT name, value FROM dense").fetchall())
        if not stored:
            return None, np.zeros((0, 0), np.float32)
        projection = Projection(np.frombuffer(stored["weights"], np.float32))
        vectors = np.frombuffer(stored["vectors"], np.float16).astype(np.float32)
        return projection, vectors.reshape(-1, projection.dimensions)


def build_index(path: Path, documents: Iterable[Document], *, dense: bool = False) -> None:
    """Write an index, whole or not at all; two builders at once do not disturb each other.

    Args:
        dense: add vectors of hashed words, a ranking of its own that is merged with BM25's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as connection:
        connection.executescript(_SCHEMA)
        texts: list[str] = []
        terms = Counter[str]()
        for number, document in enumerate(documents, 1):
            about = (document.title, document.text, document.source, document.licence, document.part)
            row = (number, document.id, _name(document.title), *about)
            connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            for page, body in enumerate(pages(document.text), 1):
                at = connection.execute("INSERT INTO pages (document, page) VALUES (?, ?)", (number, page)).lastrowid
                connection.execute(
                    "INSERT INTO words (rowid, title, body) VALUES (?, ?, ?)", (at, document.title, body)
                )
                terms.update({word.casefold() for word in re.findall(r"[^\W_]+", f"{document.title} {body}")})
                if dense:
                    texts.append(f"{document.title}\n{body}")
        if dense:
            projection, vectors = fit(texts)
            parts = {"weights": projection.weights.tobytes(), "vectors": vectors.astype(np.float16).tobytes()}
            connection.executemany("INSERT INTO dense VALUES (?, ?)", parts.items())
        connection.executemany("INSERT INTO terms VALUES (?, ?)", terms.items())
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.commit()
    partial.replace(path)


def snippet(hit: Hit, length: int = 200) -> str:
    """The beginning of a hit's text on one line."""
    text = squeeze(hit.text)
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _name(title: str) -> str:
    """A title without the parenthesis at its end, as names are compared."""
    return squeeze(re.sub(r"\s*\([^()]*\)\s*$", "", title)).casefold()


def _fuse(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over the rankings, best first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, 1):
            scores[number] = scores.get(number, 0.0) + 1.0 / (RRF + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))

"""The parts of a chained question: what a case is, the moves towards its answer, and a family of cases.

``draw`` looks at the whole corpus: a case where a second document would fit as well is no case. ``play`` solves one
through searching and reading alone, as a policy would: it knows the slots of the question's text and what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from glmgym_envs.search.answers import AnswerKind
from glmgym_envs.search.documents import Document

LONGEST_QUOTE = 160  # characters of a sentence or definition that a question quotes

V = TypeVar("V")
Slots = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Search:
    """Ask the index; answered by the ids and pages it found, best first, a pair a line."""

    query: str


@dataclass(frozen=True, slots=True)
class Read:
    """Read a document, or one page of it; answered by the text."""

    id: str
    page: int | None = None


Play = Generator[Search | Read, str, str]  # observations in, moves out; returns the answer, "" if it gives up


@dataclass(frozen=True, slots=True)
class Draft:
    """One case. ``documents`` hold the chain in order."""

    slots: Slots
    answers: tuple[str, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Questions of one shape."""

    name: str
    instruction: str
    kind: AnswerKind
    draw: Callable[[Sequence[Document]], Iterator[Draft]]
    play: Callable[[Slots], Play]


def first(
    query: str, read: Callable[[str], V | None], *, only: str = ""
) -> Generator[Search | Read, str, tuple[str, V] | None]:
    """Search, and read the pages found until one is of the document; its id, and what was read.

    Args:
        only: read documents whose id begins so.
    """
    listed = yield Search(query)
    for line in listed.splitlines():
        id, page = line.split()
        if id.startswith(only):
            found = read((yield Read(id, int(page))))
            if found is not None:
                return id, found
    return None


def if_it(value: V | None, is_it: Callable[[V], bool]) -> V | None:
    return value if value is not None and is_it(value) else None


def gives_away(text: str, answers: str) -> bool:
    return any(answer.lower() in text.lower() for answer in answers.split(", "))

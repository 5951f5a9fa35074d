"""A scripted expert: plays a family's way to the answer, on an index or as the turns of an episode."""

from __future__ import annotations

from collections.abc import Iterator

from glmgym.env import Task
from glmgym.messages import Message, ToolCall, assistant
from glmgym_envs.search.chain import Family, Read, Search, Slots
from glmgym_envs.search.documents import pages
from glmgym_envs.search.env import HITS
from glmgym_envs.search.families import FAMILIES
from glmgym_envs.search.index import Index
from glmgym_envs.search.library import Library
from glmgym_envs.search.questions import read_data

_BY_NAME = {family.name: family for family in FAMILIES}


def oracle(library: Library, task: Task) -> list[Message]:
    """The expert's turns for a task of a shipped family."""
    return turns(task.family, read_data(task).slots, library.index)


def turns(family: str, slots: Slots, index: Index) -> list[Message]:
    """The assistant turns of the expert, the answer last. A whole document is opened page by page."""
    moves, answer = _solve(_BY_NAME[family], slots, index)
    calls = [call for move in moves for call in _calls(move, index)]
    calls.append(("answer", {"text": answer}))
    return [assistant("", ToolCall(f"call_{i}", name, arguments)) for i, (name, arguments) in enumerate(calls)]


def baseline(tasks: list[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    """Closed book: by family, the answer that is most common among ``(family, answers)`` pairs."""
    counts: dict[str, dict[str, int]] = {}
    for family, answers in tasks:
        of = counts.setdefault(family, {})
        of[answers[0]] = of.get(answers[0], 0) + 1
    return {family: max(sorted(of), key=of.__getitem__) for family, of in counts.items()}


def _solve(family: Family, slots: Slots, index: Index) -> tuple[list[Search | Read], str]:
    play = family.play(slots)
    moves: list[Search | Read] = []
    try:
        move = next(play)
        while True:
            moves.append(move)
            move = play.send(_observe(move, index))
    except StopIteration as end:
        return moves, str(end.value)


def _observe(move: Search | Read, index: Index) -> str:
    if isinstance(move, Search):
        return "\n".join(f"{hit.document} {hit.page}" for hit in index.search(move.query, HITS))
    document = index.document(move.id)
    if document is None:
        return ""
    return document.text if move.page is None else pages(document.text)[move.page - 1]


def _calls(move: Search | Read, index: Index) -> Iterator[tuple[str, dict[str, str | int]]]:
    if isinstance(move, Search):
        yield "search", {"query": move.query}
        return
    document = index.document(move.id)
    number = len(pages(document.text)) if document else 1
    for page in range(1, 1 + number) if move.page is None else (move.page,):
        yield "open", {"id": move.id, "page": page}

"""Drawing questions from a corpus: which candidates are kept, and which are train or held out.

A candidate is kept when an expert that knows nothing but the question's words finds the answer through the index. All
documents of a question lie on one side of the split, so no held-out fact is ever needed in training.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmgym.env import Split
from glmgym_envs.search.answers import is_correct
from glmgym_envs.search.chain import Draft, Family, Slots
from glmgym_envs.search.documents import Document
from glmgym_envs.search.env import MAX_TURNS
from glmgym_envs.search.expert import turns
from glmgym_envs.search.families import FAMILIES
from glmgym_envs.search.index import Index
from glmgym_envs.search.questions import Question

HELDOUT_SHARE = 0.3  # of the parts of a corpus, and of the questions as far as there are enough
MOST_OF_ONE_ANSWER = 3  # questions of a family that may share an answer, so that guessing it is worth little


@dataclass(frozen=True, slots=True)
class Drawn:
    """The result of drawing: ``candidates`` and ``solved`` count by family what the expert was asked and found."""

    questions: tuple[Question, ...]
    candidates: Mapping[str, int]
    solved: Mapping[str, int]


def side(part: str) -> Split:
    """Train or held out, by the name of the part alone."""
    return "heldout" if hashlib.sha256(f"search:{part}".encode()).digest()[0] < HELDOUT_SHARE * 256 else "train"


def draw_questions(
    documents: Sequence[Document], index: Index, *, name: str, most: Mapping[str, int] | int = 60
) -> Drawn:
    """Draw questions from a corpus; the same in every process.

    Args:
        most: questions kept of each family, or of each named one.
    """
    parts = {document.id: document.part for document in documents}
    questions: list[Question] = []
    candidates, solved = Counter[str](), Counter[str]()
    for family in FAMILIES:
        limit = most if isinstance(most, int) else most.get(family.name, 0)
        picked = _pick(family, documents, parts, limit)
        for draft, split in picked:
            text = family.instruction.format(**draft.slots)
            candidates[family.name] += 1
            if _is_found(family, draft.slots, draft.answers, index):
                solved[family.name] += 1
                questions.append(
                    Question(
                        id=f"{name}/{family.name}/{solved[family.name]:03d}",
                        question=text,
                        answers=list(draft.answers),
                        kind=family.kind,
                        family=family.name,
                        split=split,
                        documents=list(draft.documents),
                        slots=dict(draft.slots),
                    )
                )
    # Mixed, so that the first few questions of a set are of every family.
    questions.sort(key=lambda question: hashlib.sha256(question.id.encode()).digest())
    return Drawn(tuple(questions), candidates, solved)


def unanswered(questions: Sequence[Question], index: Index) -> list[str]:
    """Ids of the drawn questions whose answer the expert does not find in an index."""
    of = {family.name: family for family in FAMILIES}
    return [q.id for q in questions if not _is_found(of[q.family], q.slots, q.answers, index)]


def _is_found(family: Family, slots: Slots, answers: Sequence[str], index: Index) -> bool:
    """Whether the expert's turns end with an accepted answer and fit into an episode."""
    played = turns(family.name, slots, index)
    said = str(played[-1].tool_calls[0].arguments["text"])
    return len(played) <= MAX_TURNS and is_correct(said, answers, family.kind)


def _pick(
    family: Family, documents: Sequence[Document], parts: Mapping[str, str], limit: int
) -> list[tuple[Draft, Split]]:
    """Drafts in an order of their own, no answer too often, train and held out in turn as far as both have some."""
    drafts = sorted(family.draw(documents), key=lambda draft: hashlib.sha256(repr(draft).encode()).digest())
    of: dict[Split, list[Draft]] = {"train": [], "heldout": []}
    times: dict[str, int] = defaultdict(int)
    for draft in drafts:
        sides = {side(parts[id]) for id in draft.documents}
        if len(sides) == 1 and times[draft.answers[0]] < MOST_OF_ONE_ANSWER:
            times[draft.answers[0]] += 1
            of[sides.pop()].append(draft)
    held = of["heldout"][: round(limit * HELDOUT_SHARE)]
    return [*((draft, "heldout") for draft in held), *((draft, "train") for draft in of["train"][: limit - len(held)])]

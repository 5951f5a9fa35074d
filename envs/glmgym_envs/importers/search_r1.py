"""Search-R1: its rows as questions of the search environment, its two tags as actions, its exact match as a score.

Questions are written as JSON lines ``{"id", "question", "answers"}``. Raw HotpotQA, 2Wiki and MuSiQue rows (``id`` or
``_id``, ``question``, ``answer``) are taken as well.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmgym.errors import ConfigError
from glmgym_envs.importers.rows import Row, read_rows

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_QUESTION = re.compile(r"Question:\s*(.+?)\s*(?:<\|im_end\|>.*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Action:
    """What a turn does: look something up, end with an answer, or neither."""

    kind: Literal["search", "answer", "invalid"]
    text: str = ""


def read_action(text: str) -> Action:
    """The first whole tag of what the policy wrote; text without one is invalid."""
    match = _ACTION.search(text)
    if match is None:
        return Action("invalid")
    return Action("search" if match[1] == "search" else "answer", match[2].strip())


def normalise(answer: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, targets: Iterable[str]) -> bool:
    """Whether the answer is one of the targets, both normalised."""
    return normalise(answer) in {normalise(target) for target in targets}


def score(replies: Sequence[str], targets: Iterable[str]) -> float:
    """1.0 iff the first answer of the episode is right.

    Args:
        replies: what the policy wrote, turn by turn, and nothing else. The reference skips the first tag, taking it
            for the example in the prompt; with the prompt not in here the first tag is the answer.
    """
    actions = (action for reply in replies for action in _actions(reply))
    answer = next((action.text for action in actions if action.kind == "answer"), None)
    return float(answer is not None and exact_match(answer, targets))


def _actions(reply: str) -> list[Action]:
    return [Action("search" if tag == "search" else "answer", text.strip()) for tag, text in _ACTION.findall(reply)]


def import_search_r1(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """Search-R1 rows as ``out/questions.jsonl``.

    Raises:
        ConfigError: naming the row and the key that cannot be taken, or the file is there already.
    """
    if image or repositories is not None:
        raise ConfigError("search-r1 writes questions, which need no box: leave --image and --repositories out")
    rows = read_rows(source)
    return [write_questions([question_of(row, number) for number, row in enumerate(rows)], out)]


def question_of(row: Row, number: int) -> dict[str, Any]:
    """``{"id", "question", "answers"}`` of one row; ``number`` is its place, for rows without an id."""
    extra = row.data.get("extra_info") or {}
    named = row.data.get("id") or row.data.get("_id")
    id = named or "-".join(
        str(part)
        for part in (row.data.get("data_source", "row"), extra.get("split"), extra.get("index", number))
        if part not in (None, "")
    )
    return {"id": str(id), "question": _question(row), "answers": _answers(row)}


def write_questions(questions: Sequence[dict[str, Any]], out: Path) -> Path:
    """Write the questions, one a line.

    Raises:
        ConfigError: two have the same id, or there is such a file already.
    """
    seen: set[str] = set()
    for question in questions:
        if question["id"] in seen:
            raise ConfigError(f"two questions have the id {question['id']!r}")
        seen.add(question["id"])
    file = out / "questions.jsonl"
    if file.exists():
        raise ConfigError(f"{file} is there already; give another place, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions), "utf-8")
    return file


def _question(row: Row) -> str:
    if row.data.get("question"):
        return row.text("question").strip()
    prompt = row.data.get("prompt")
    messages = list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, str) else []
    asked = [message["content"] for message in messages if message.get("role") == "user"]
    match = (
        _QUESTION.search(asked[-1].rpartition("Question:")[1] + asked[-1].rpartition("Question:")[2]) if asked else None
    )
    if match is None:
        raise row.wrong("prompt", "no 'Question: ...' in its last user message, and there is no question key")
    return match[1]


def _answers(row: Row) -> list[str]:
    if "reward_model" in row.data:
        model = row.json("reward_model")
        if model.get("style") != "rule":
            raise row.wrong("reward_model", f"style = {model.get('style')!r}: only 'rule' can be graded by exact match")
        truth = model.get("ground_truth")
        found = truth.get("target") if isinstance(truth, dict) else truth
    elif row.data.get("golden_answers") is not None:
        found = row.data["golden_answers"]
    else:
        found = [row.text("answer"), *(row.data.get("answer_aliases") or ())]
    answers = [found] if isinstance(found, str) else list(found or ())
    if not answers or not all(isinstance(answer, str) and normalise(answer) for answer in answers):
        key = "reward_model" if "reward_model" in row.data else "answer"
        raise row.wrong(key, "needs answers that are not empty once normalised")
    return list(dict.fromkeys(answers))

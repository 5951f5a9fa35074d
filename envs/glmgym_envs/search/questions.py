"""Questions with accepted answers: what they are on disk, and as the tasks of an environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from pydantic import Field

from glmgym.env import Split, Task
from glmgym.errors import ConfigError
from glmgym.settings import Settings, parse_settings
from glmgym_envs.search.answers import AnswerKind


class Question(Settings):
    """One question: a line of a question file, and ``Task.data`` but for its id and text."""

    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)  # any of them is right
    kind: AnswerKind = "string"
    family: str = ""
    split: Split = "heldout"
    documents: list[str] = Field(default_factory=list)  # that hold the chain, in order
    slots: dict[str, str] = Field(default_factory=dict)  # what the text was filled with; all that the expert knows

    def task(self) -> Task:
        """The question as a task."""
        data = self.model_dump(exclude={"id", "question", "family", "split"})
        return Task(self.id, self.question, data, self.family, "search")


class SearchData(Settings):
    """``Task.data`` of a question."""

    answers: list[str] = Field(min_length=1)
    kind: AnswerKind = "string"
    documents: list[str] = Field(default_factory=list)
    slots: dict[str, str] = Field(default_factory=dict)


class QuestionSet:
    """The questions of a file as a task set.

    Raises:
        ConfigError: an id appears twice.
    """

    def __init__(self, questions: Sequence[Question], *, name: str) -> None:
        self.name = name
        for id, count in Counter(question.id for question in questions).items():
            if count > 1:
                raise ConfigError(f"{name}: {count} questions have the id {id!r}")
        self._of: dict[Split, list[Question]] = {"train": [], "heldout": []}
        for question in questions:
            self._of[question.split].append(question)

    def size(self, split: Split) -> int:
        return len(self._of[split])

    def task(self, split: Split, index: int) -> Task:
        """Raises IndexError: ``index`` is not in ``range(size(split))``."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"task {index} of {self.name}/{split}: there are {self.size(split)}")
        return self._of[split][index].task()


def shipped_questions(name: str) -> QuestionSet:
    """The questions that ship with glmgym under that name."""
    return QuestionSet(read_questions(data_file(f"{name}.jsonl")), name=name)


def data_file(name: str) -> Path:
    """A file that ships with this package."""
    return Path(str(files("glmgym_envs.search").joinpath("data", name)))


def read_data(task: Task) -> SearchData:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(SearchData, task.data, where=f"task {task.id}")


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write a question file, one JSON object a line."""
    lines = [json.dumps(question.model_dump(), ensure_ascii=False) + "\n" for question in questions]
    path.write_text("".join(lines), "utf-8")


def read_questions(path: Path) -> list[Question]:
    """The questions of a file.

    Raises:
        ConfigError: it cannot be read, or a line is no question; the message names the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"questions {path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: wanted a JSON object")
        found.append(parse_settings(Question, row, where=where))
    return found

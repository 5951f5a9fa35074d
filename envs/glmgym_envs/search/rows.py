"""Questions of one's own: ``{"id", "question", "answers"}`` a line, as the Search-R1 importer writes them.

An environment file for the command line takes one call, with any retriever:
``spec_of(Path("questions.jsonl"), RetrieveClient("http://127.0.0.1:8000/retrieve"), id="nq-v0")``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from glmgym.errors import ConfigError
from glmgym.registry import EnvSpec, register
from glmgym_envs.search.env import Asking
from glmgym_envs.search.library import Retriever
from glmgym_envs.search.questions import QuestionSet, read_questions

MAX_TURNS = 16


def task_set(path: Path) -> QuestionSet:
    """The rows of a file as tasks: held out, but for rows that say ``"split": "train"``.

    Raises:
        ConfigError: the file cannot be read, a line is no question, or there is none.
    """
    questions = read_questions(path)
    if not questions:
        raise ConfigError(f"{path} holds no question")
    return QuestionSet(questions, name=str(path))


def spec_of(path: Path, retriever: Retriever, *, id: str) -> EnvSpec:
    """Register an environment over a file of rows; there is no oracle, since nobody knows the way to an answer.

    Raises:
        ConfigError: see ``task_set``; or the id is taken.
    """
    return register(id, partial(Asking, retriever), tasks=task_set(path), max_turns=MAX_TURNS)

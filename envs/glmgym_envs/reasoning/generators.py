"""Every fit generator of the reasoning-gym library as a single-turn environment: ``reasoning-gym/NAME-v0``.

The library draws the questions and grades the answers; splits, failures and what may run on this machine are owned
here. It is imported when the first task is drawn, so that listing environments needs no extra and costs nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import Field

from glmgym.env import ScoreView, Split, Task
from glmgym.errors import ConfigError, ScorerFailure, UnknownName, boundary
from glmgym.messages import Message, assistant
from glmgym.registry import EnvSpec, register
from glmgym.settings import Settings, parse_settings
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward
from glmgym_envs.reasoning.names import HASH_ORDERED, UNSAFE

_ATTEMPTS = 400  # draws for one task before its generator counts as exhausted
_HELDOUT_SHARE = 1 / 8  # of all questions
_SEEDS = 2**30  # of each split
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class GeneratorData(Settings):
    """``Task.data`` of a generated question: what it takes to draw it again."""

    generator: str
    seed: int
    options: dict[str, Any] = Field(default_factory=dict)


class ReasoningGym(ToolEnv):
    """A question of a reasoning-gym generator, graded by the library."""

    system = "Give the final answer between <answer> and </answer>."

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """The library's score of what stands in the last answer tag, or else of the whole message; in [0, 1].

        Some generators give a little for a wrong answer. An empty answer gets 0 from all.

        Raises:
            ScorerFailure: the question is not drawn the same again, or the scorer cannot read even its own answer.
        """
        return (await asyncio.to_thread(_grade, view.task, view.answer),)


class GeneratorTasks:
    """Questions of one generator. The splits draw from two ranges of seeds, and a question's own digest says which
    split it is for: so no training question is ever a held-out one, however few different ones there are."""

    def __init__(self, generator: str, options: Mapping[str, Any], *, train: int, heldout: int, seed: int) -> None:
        self.generator = generator
        self._options = dict(options)
        self._sizes: dict[Split, int] = {"train": train, "heldout": heldout}
        self._seed = seed

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def task(self, split: Split, index: int) -> Task:
        """Task ``index`` of a split.

        Raises:
            IndexError: ``index`` is not in ``range(size(split))``.
            ConfigError: the library is missing, has no such generator or refuses the options, the generator is unsafe
                or needs a fixed hash seed, or it has too few different questions to fill the split.
        """
        if not 0 <= index < self._sizes[split]:
            raise IndexError(f"task {index} of {self.generator}/{split}: there are {self._sizes[split]}")
        for attempt in range(_ATTEMPTS):
            digest = hashlib.sha256(f"{self.generator}/{self._seed}/{split}/{index}/{attempt}".encode()).digest()
            seed = int.from_bytes(digest) % _SEEDS + _SEEDS * (split == "heldout")
            data = GeneratorData(generator=self.generator, seed=seed, options=self._options)
            question = _draw(data)[1]["question"]
            if split_of(question) == split:
                id = f"reasoning-gym/{self.generator}/{split}/{index}"
                return Task(id, question, data.model_dump(), family=self.generator, domain="reasoning")
        raise ConfigError(
            f"reasoning-gym generator {self.generator!r}: {_ATTEMPTS} draws for {split} task {index} gave no question "
            f"of that split; it has too few different ones with options {self._options}"
        )


def register_generator(
    generator: str,
    *,
    id: str = "",
    options: Mapping[str, Any] | None = None,
    train: int = 10_000,
    heldout: int = 256,
    seed: int = 0,
) -> EnvSpec:
    """Register a generator as an environment; those of ``GENERATORS`` are registered with the library's defaults.

    Args:
        generator: its name in reasoning-gym.
        id: ``""`` is ``reasoning-gym/GENERATOR-v0``.
        options: fields of the generator's own configuration, such as ``{"min_terms": 4}`` of ``chain_sum``; JSON only.
        train: number of training tasks, drawn on demand.
        heldout: number of held-out tasks.
        seed: another one gives other tasks.

    Raises:
        ConfigError: the generator is one of ``UNSAFE``, an option is not JSON, or the id is taken.
    """
    _refuse_unsafe(generator)
    try:
        json.dumps(options)
    except TypeError as error:
        raise ConfigError(f"reasoning-gym generator {generator!r}: options must be plain JSON: {error}") from error
    return register(
        id or f"reasoning-gym/{generator}-v0",
        ReasoningGym,
        tasks=GeneratorTasks(generator, options or {}, train=train, heldout=heldout, seed=seed),
        oracle=oracle,
        max_turns=1,
        description="Questions of this generator, graded by its library.",
    )


def oracle(task: Task) -> list[Message]:
    """The library's own answer.

    Raises:
        ConfigError: the generator has none, since its questions have many right answers.
    """
    data = _read_data(task)
    answer = _draw(data)[1]["answer"]
    if answer is None:
        raise ConfigError(f"reasoning-gym generator {data.generator!r} gives no answer of its own, so it has no oracle")
    return [assistant(f"<answer>{answer}</answer>")]


def split_of(question: str) -> Split:
    """The split a question belongs to, whatever seed drew it."""
    digest = hashlib.sha256(question.encode()).digest()
    return "heldout" if int.from_bytes(digest[:8]) < _HELDOUT_SHARE * 2**64 else "train"


def _grade(task: Task, message: str) -> Reward:
    data = _read_data(task)
    tagged = _ANSWER.findall(message)
    answer = (tagged[-1] if tagged else message).strip()
    of_library = version("reasoning-gym")
    if not answer:
        return Reward("correct", 0.0, version=of_library, reason="no answer")
    dataset, entry = _draw(data)
    if entry["question"] != task.instruction:
        raise ScorerFailure(
            f"task {task.id}: reasoning-gym {of_library} draws another question from seed {data.seed} now; the task "
            "was made by another version of it or of Python"
        )
    try:
        return Reward("correct", _score(dataset, answer, entry), version=of_library)
    except ScorerFailure as failure:
        # It reads a right answer, so what it could not read is this one; else nothing is known about the policy.
        if entry["answer"] is None or _score(dataset, entry["answer"], entry) < 1.0:
            raise
        return Reward("correct", 0.0, version=of_library, reason=str(failure)[:200])


def _score(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    with boundary(ScorerFailure, f"reasoning-gym {entry['metadata'].get('source_dataset', '')}"):
        return float(dataset.score_answer(answer, entry))


def _draw(data: GeneratorData) -> tuple[Any, dict[str, Any]]:
    """The dataset of one entry that a seed stands for, and the entry: question, answer and metadata."""
    name = data.generator
    _refuse_unsafe(name)
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigError(
            f"reasoning-gym/{name} needs the library: pip install 'glmgym[reasoning]' ({error})"
        ) from error
    if name not in DATASETS:
        raise UnknownName("reasoning-gym generator", name, DATASETS)
    if name in HASH_ORDERED and sys.flags.hash_randomization:
        raise ConfigError(
            f"reasoning-gym generator {name!r} asks something else in each process; start Python with PYTHONHASHSEED=0"
        )
    try:
        dataset = create_dataset(name, seed=data.seed, size=1, **data.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym generator {name!r} refuses options {data.options}: {error}") from error
    return dataset, dataset[0]


def _refuse_unsafe(generator: str) -> None:
    if generator in UNSAFE:
        raise ConfigError(
            f"reasoning-gym generator {generator!r} is not offered: its scorer runs the answer as Python code on this "
            "machine, outside any sandbox"
        )


def _read_data(task: Task) -> GeneratorData:
    return parse_settings(GeneratorData, task.data, where=f"task {task.id}")

"""Policies without a model: the environment's own oracle, and one that makes valid tool calls at random.

Both play through the whole path of an evaluation, so that a suite, its boxes and its grading can be tried without an
engine: the expert must score 1 and the random policy little.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmgym.env import Oracle, Task
from glmgym.errors import ConfigError, EnvFailure, UnknownName, boundary
from glmgym.evaluation.attempt import content_digest
from glmgym.evaluation.player import Policy, Reply, Speaker
from glmgym.messages import Message, ToolCall, ToolSpec, assistant
from glmgym.rollout import Job

PREFIX = "scripted:"
_ANSWER_CHANCE = 0.15  # of a random turn that answers instead of calling
_WORDS = ("ls", "cat", "main.py", "0", "1", "42", "true", "README.md", "a", "find")


def scripted_policy(name: str) -> Policy:
    """``scripted:expert`` or ``scripted:random``.

    Raises:
        UnknownName: there is no such script.
    """
    known: dict[str, Callable[[], Policy]] = {"expert": ExpertPolicy, "random": RandomPolicy}
    script = name.removeprefix(PREFIX)
    if script not in known:
        raise UnknownName("scripted policy", script, known)
    return known[script]()


@dataclass(frozen=True, slots=True)
class ExpertPolicy:
    """Plays the environment's oracle."""

    name: str = PREFIX + "expert"

    @property
    def digest(self) -> str:
        return content_digest(self.name)

    def speaker(self, job: Job) -> Speaker:
        """The oracle's turns, in order.

        Raises:
            ConfigError: the environment has no oracle.
        """
        if job.spec.oracle is None:
            raise ConfigError(f"{job.spec.id} has no oracle, so nobody can play {self.name}; give another --policy")
        return _Lines(job.spec.oracle, job.task)

    async def close(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Calls a random tool with random arguments of the right types, and now and then answers."""

    name: str = PREFIX + "random"

    @property
    def digest(self) -> str:
        return content_digest([self.name, _ANSWER_CHANCE, _WORDS])

    def speaker(self, job: Job) -> Speaker:
        return _Dice()

    async def close(self) -> None:
        return


class _Lines:
    """Asked for when the first is wanted, off the event loop: an oracle may play a page of its own to find them."""

    def __init__(self, oracle: Oracle, task: Task) -> None:
        self._oracle, self._task = oracle, task
        self._lines: Iterator[Message] | None = None

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        if self._lines is None:
            with boundary(EnvFailure, f"oracle on {self._task.id}"):
                self._lines = iter(await asyncio.to_thread(self._oracle, self._task))
        line = next(self._lines, None)
        return None if line is None else Reply(line)


class _Dice:
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        rng = random.Random(seed)
        if not tools or rng.random() < _ANSWER_CHANCE:
            return Reply(assistant(rng.choice(_WORDS)))
        spec = rng.choice(list(tools))
        call = ToolCall(f"call_{len(messages)}", spec.name, random_arguments(spec.parameters, rng))
        return Reply(assistant("", call))


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Arguments that fit a tool's schema: every required one, and each optional one half of the time."""
    required = set(schema.get("required", ()))
    chosen = {
        name: part for name, part in schema.get("properties", {}).items() if name in required or rng.random() < 0.5
    }
    return {name: _value(part, rng) for name, part in chosen.items()}


def _value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    kind = schema.get("type")
    if kind == "integer":
        return rng.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 20)))
    if kind == "number":
        return round(rng.uniform(float(schema.get("minimum", 0.0)), float(schema.get("maximum", 20.0))), 3)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [_value(schema.get("items", {}), rng) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return {}
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 3)))

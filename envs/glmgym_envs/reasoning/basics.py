"""``reasoning-basics``: procedural questions that a very small policy can learn, and scripted policies for them.

``oracle`` solves every task; ``demonstrate`` makes mistakes that imitation learns as bad habits and reinforcement can
unlearn. Observations come from an imitation of Python, so that a corpus of demonstrations needs no sandbox.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from glmgym.env import Task
from glmgym.messages import Message, ToolCall, assistant, tool_result
from glmgym_envs.reasoning.env import Reasoning, ReasoningData, read_data
from glmgym_envs.reasoning.families import FAMILIES, Family
from glmgym_envs.reasoning.simulate import simulate
from glmgym_envs.terminal.families import Slip

MAX_TURNS = 5  # the longest demonstration takes 4
_BY_NAME = {family.name: family for family in FAMILIES}


def make(rng: random.Random) -> Task:
    """One task of a random family."""
    return make_of(rng.choice(FAMILIES), rng)


def make_of(family: Family, rng: random.Random) -> Task:
    """One task of the given family."""
    data = family.make(rng)
    instruction = family.instruction.format(**data.slots)
    return Task(instruction=instruction, data=data.model_dump(mode="json"), family=family.name, domain="reasoning")


def oracle(task: Task) -> list[Message]:
    """The assistant turns that solve a task."""
    return [message for message in demonstrate(task, random.Random(0), 0.0) if message.role == "assistant"]


def demonstrate(task: Task, rng: random.Random, noise: float) -> list[Message]:
    """One scripted episode after the opening: assistant turns and the observations a real box would give.

    Each possible mistake happens with probability ``noise``, independently: a guess without the tool where it is
    needed, a call with a wrong argument name, a useless first call, and in every choice of the family a wrong operand,
    order, operation or answer.
    """
    data = read_data(task)
    script = _script(_BY_NAME[task.family], data, Slip(rng, noise, {}))
    messages: list[Message] = []
    observation: str | None = None
    while True:
        try:
            arguments = script.send(observation)
        except StopIteration as end:
            return [*messages, assistant(end.value)]
        call = ToolCall(f"call_{len(messages) // 2}", "python", arguments)
        problem = Reasoning.python.problem(arguments)
        observation = f"error: {problem}" if problem else simulate(arguments["code"])
        messages += [assistant("", call), tool_result(call, observation)]


def _script(family: Family, data: ReasoningData, slip: Slip) -> Generator[dict[str, str], Any, str]:
    """A family's play as arguments of the Python tool, with the mistakes that any family may make."""
    if family.play is None:
        assert family.wrong is not None
        return slip.choose(data.answer, family.wrong(data.slots))
    if slip.errs():
        return _guess(data.answer, slip.rng)
    moves = family.play(data.slots, slip)
    code = f"print({next(moves)})"
    if slip.errs():
        yield {"expr": code}
    if slip.errs():
        yield {"code": f"print({slip.rng.randint(1, 99)})"}
    while True:
        observation = yield {"code": code}
        try:
            code = f"print({moves.send(observation)})"
        except StopIteration as end:
            return str(end.value)


def _guess(answer: str, rng: random.Random) -> str:
    """An answer of the right kind, given without the tool: as many digits, or the letters in some order."""
    if answer.isdigit():
        return str(rng.randint(10 ** (len(answer) - 1), 10 ** len(answer) - 1))
    return "".join(rng.sample(answer, len(answer)))

"""``terminal-basics``: procedural shell tasks that a very small policy can learn, and scripted policies for them.

``oracle`` solves every task; ``noisy_oracle`` makes mistakes that imitation learns as bad habits and reinforcement can
unlearn. Both read observations from a simulated shell, so that a corpus of demonstrations needs no sandbox.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

from glmgym.env import Task
from glmgym.messages import Message, ToolCall, assistant, tool_result
from glmgym_envs.terminal.env import Terminal, TerminalData, describe, read_data
from glmgym_envs.terminal.families import DONE, FAMILIES, RUNAWAY, Family, Play, Slip, Slots
from glmgym_envs.terminal.simulate import SimulatedShell
from glmgym_envs.terminal.words import WORDS

MAX_TURNS = 8
_BY_NAME = {family.name: family for family in FAMILIES}


class TerminalBasics(Terminal):
    """Short shell tasks of eleven families."""

    max_observation_chars = 240


def make(rng: random.Random) -> Task:
    """One task of a random family."""
    return make_of(rng.choice(FAMILIES), rng)


def make_of(family: Family, rng: random.Random) -> Task:
    """One task of the given family."""
    scene = family.make(rng)
    data = TerminalData(
        files={name: "".join(f"{line}\n" for line in lines) for name, lines in scene.files.items()},
        jobs=dict.fromkeys(scene.jobs, RUNAWAY),
        collect=list(scene.collect),
        check=scene.check + "\n",
        answer=scene.answer,
        slots=scene.slots,
    )
    instruction = family.instruction.format(**scene.slots)
    return Task(instruction=instruction, data=data.model_dump(), family=family.name, domain="terminal")


def oracle(task: Task) -> list[Message]:
    """The assistant turns that solve a task."""
    return noisy_oracle(task, random.Random(0), 0.0)


def noisy_oracle(task: Task, rng: random.Random, noise: float) -> list[Message]:
    """The assistant turns of :func:`demonstrate`."""
    return [message for message in demonstrate(task, rng, noise) if message.role == "assistant"]


def demonstrate(task: Task, rng: random.Random, noise: float) -> list[Message]:
    """One scripted episode after the opening: assistant turns and the observations the real shell would give.

    Each possible mistake happens with probability ``noise``, independently: a guess before looking, a call with a wrong
    argument name, a useless first command, and in every choice of the family a wrong file, word, line, order or answer.
    The last assistant turn is the answer, unless ``MAX_TURNS`` ended the episode first.
    """
    data = read_data(task)
    shell = SimulatedShell(data.files, data.jobs)
    script = _script(_BY_NAME[task.family].play, data, Slip(rng, noise, data.files))
    messages: list[Message] = []
    observation: str | None = None
    for turn in range(MAX_TURNS):
        try:
            arguments = script.send(observation)
        except StopIteration as end:
            return [*messages, assistant(end.value)]
        call = ToolCall(f"call_{turn}", "shell", arguments)
        problem = Terminal.shell.problem(arguments)
        observation = f"error: {problem}" if problem else describe(shell.run(arguments["cmd"]))
        messages += [assistant("", call), tool_result(call, observation)]
    return messages


def _script(play: Callable[[Slots, Slip], Play], data: TerminalData, slip: Slip) -> Generator[dict[str, str], Any, str]:
    """A family's play as arguments of the shell tool, with the mistakes that any family may make."""
    if slip.errs():
        return _guess(data.answer, slip)
    moves = play(data.slots, slip)
    command = next(moves)
    if slip.errs():
        yield {"command": command}
    if slip.errs():
        yield {"cmd": _useless(slip)}
    while True:
        observation = yield {"cmd": command}
        try:
            command = moves.send(observation)
        except StopIteration as end:
            return str(end.value)


def _guess(answer: str, slip: Slip) -> str:
    """An answer of the right kind, given without looking."""
    if answer == DONE:
        return DONE
    if answer.isdigit():
        return str(slip.rng.randint(1, 5))
    return slip.rng.choice(slip.names if answer.endswith(".txt") else WORDS)


def _useless(slip: Slip) -> str:
    forms = ["ls", *(f"{verb} {name}" for verb in ("cat", "sort", "sed -n 1p") for name in slip.names)]
    return slip.rng.choice(forms)

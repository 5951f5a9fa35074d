"""``terminal-basics``: procedural shell tasks that a very small policy can learn, with scripted policies that play them.

``oracle`` solves every task; ``noisy_oracle`` makes mistakes that imitation learns as bad habits and reinforcement can
unlearn. Both read observations from a simulated shell, so that a corpus of demonstrations needs no sandbox.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from glmgym.env import Task
from glmgym.messages import Message, ToolCall, assistant, tool_result
from glmgym_envs.terminal.env import Terminal, TerminalData, describe, read_data
from glmgym_envs.terminal.families import DONE, FAMILIES, RUNAWAY, Family, Play, Slip
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
    slip = Slip(rng, noise, data.files)
    messages: list[Message] = []
    play = _with_habits(_BY_NAME[task.family].play(data.slots, slip), data.answer, slip)
    turn = next(play)
    while isinstance(turn, dict):
        call = ToolCall(f"call_{len(messages) // 2}", "shell", turn)
        problem = Terminal.shell.problem(turn)
        text = f"error: {problem}" if problem else describe(shell.run(turn["cmd"]))
        messages += [assistant("", call), tool_result(call, text)]
        if len(messages) == 2 * MAX_TURNS:
            return messages
        turn = play.send(text)
    return [*messages, assistant(turn)]

"""A scripted policy for ``longhaul`` that remembers only what its context would show, with mistakes to imitate.

``demonstrate`` plays it in one long context. Under compaction, whoever reads a ``rehearse`` asks the hauler for a
summary where the rollout would: it then forgets all but the summary and the last observation, and a fact that the
summary lost is lost to its answer too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from glmgym.env import Task
from glmgym.messages import Message, ToolCall, assistant, tool_result
from glmgym_envs.longhaul.env import LongHaul
from glmgym_envs.terminal.env import describe, read_data
from glmgym_envs.terminal.families import Slip
from glmgym_envs.terminal.simulate import SimulatedShell
from glmgym_envs.terminal.words import WORDS

SUMMARY_SLIPS = 3  # each mistake of a summary is this many times as likely as another: summaries have most to learn


class Hauler:
    """One episode's policy: observations in, turns out, and a summary whenever it is asked for one.

    Args:
        noise: probability of each possible mistake of a turn.
        summary_noise: probability of each possible mistake of a summary; ``None`` takes ``SUMMARY_SLIPS`` times
            ``noise``.
    """

    def __init__(self, task: Task, rng: random.Random, noise: float, summary_noise: float | None = None) -> None:
        data = read_data(task)
        self._task = task
        self._key, self._first = data.slots["key"], data.slots["file"]
        self._slip = Slip(rng, noise, data.files)
        careless = min(1.0, SUMMARY_SLIPS * noise) if summary_noise is None else summary_noise
        self._summary_slip = Slip(rng, careless, data.files)
        self._seen: list[str] = []  # what the context shows, oldest first: a summary, observations
        self._malformed = self._slip.errs()

    def turn(self, observation: str | None) -> Message:
        """The next assistant turn; ``observation`` is the answer to the one before, ``None`` at the start."""
        slip = self._slip
        if observation is None:
            if slip.errs():
                return assistant(f"{slip.rng.choice(WORDS)} {slip.rng.choice(WORDS)}")
            return self._call("command" if self._malformed else "cmd", self._first)
        if observation.startswith("error:"):
            return self._call("cmd", self._first)
        self._seen.append(observation)
        at = _where(observation)
        if at.endswith(".txt"):
            return self._call("cmd", slip.name(at))
        value = _value(self._key, self._seen) or slip.rng.choice(WORDS)
        return assistant(f"{slip.choose(value, _values(observation))} {at.split()[1]}")

    def summarize(self, observation: str) -> str:
        """The summary at this point, after ``observation``; everything older is forgotten but for what it says.

        By mistake it leaves the wanted fact out, or gives it the value of another line in sight.
        """
        seen, slip = [*self._seen, observation], self._summary_slip
        text = summary(self._task, seen)
        value = _value(self._key, seen)
        if value is not None and slip.errs():
            text = _next(seen)
        elif value is not None:
            wrong = slip.choose(value, _values("\n".join(seen)))
            text = text.replace(f"{self._key} {value}", f"{self._key} {wrong}", 1)
        self._seen = [text]
        return text

    def _call(self, argument: str, name: str) -> Message:
        return assistant("", ToolCall("call_0", "shell", {argument: f"cat {name}"}))


def summary(task: Task, seen: Sequence[str]) -> str:
    """The shortest summary to go on from: the wanted pair if it is in sight, and where the chain stands.

    Args:
        seen: what the context shows, oldest first: observations, or an earlier summary in their place.
    """
    key = read_data(task).slots["key"]
    value = _value(key, seen)
    return f"{key} {value} {_next(seen)}" if value is not None else _next(seen)


def oracle(task: Task) -> list[Message]:
    """The assistant turns that solve a task."""
    return [message for message in demonstrate(task, random.Random(0), 0.0) if message.role == "assistant"]


def demonstrate(task: Task, rng: random.Random, noise: float) -> list[Message]:
    """One scripted episode after the opening, in a context that holds it all: assistant turns and observations.

    Each possible mistake happens with probability ``noise``, independently: a guess before looking, a call with a wrong
    argument name, at each step a wrong file, and a wrong value in the answer. An episode whose commands ran out ends
    with the call that was not run.
    """
    return list(rehearse(task, Hauler(task, rng, noise)))


def rehearse(task: Task, hauler: Hauler) -> Iterator[Message]:
    """A hauler's episode in a simulated shell, message by message.

    After an observation the hauler may be asked to ``summarize`` before the next message is taken.
    """
    data = read_data(task)
    shell, commands_left = SimulatedShell(data.files), int(data.slots["count"])
    message = hauler.turn(None)
    yield message
    while message.tool_calls:
        (call,) = message.tool_calls
        problem = LongHaul.shell.problem(call.arguments)
        commands_left -= problem is None
        if commands_left < 0:
            return
        observation = f"error: {problem}" if problem else describe(shell.run(call.arguments["cmd"]))
        yield tool_result(call, observation)
        message = hauler.turn(observation)
        yield message


def _where(observation: str) -> str:
    """The last line: the next file, or the end."""
    return observation.rsplit("\n", 1)[-1]


def _next(seen: Sequence[str]) -> str:
    at = _where(seen[-1])
    return f"next {at}" if at.endswith(".txt") else at


def _value(key: str, seen: Sequence[str]) -> str | None:
    """The word after the key, in the latest text that has it."""
    matches = [match for text in seen if (match := re.search(f"{key} ([a-z]+)", text))]
    return matches[-1][1] if matches else None


def _values(text: str) -> list[str]:
    return re.findall(r"^\w+ (\w+)", text, re.MULTILINE)

"""``General``: one reply, graded by several named rules: what it says, and how it was asked to say it.

A style component never pays for an empty reply, so saying nothing scores 0; whether a reply is right never depends on
its style.
"""

from __future__ import annotations

import re

from pydantic import Field

from glmgym.env import ScoreView, Task
from glmgym.settings import Settings, parse_settings
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward

CORRECT_WEIGHT = 1.0
STYLE_WEIGHT = 0.1  # of each of format, courtesy and brevity


class GeneralData(Settings):
    """``Task.data`` of a general task."""

    answer: tuple[str, ...]  # the words that answer the question, in order
    choices: tuple[str, ...]  # every word that could; naming another of them is wrong
    begin: str  # the reply begins with this
    end: str  # and ends with this
    max_words: int = Field(ge=1)  # in the whole reply
    anchor: str  # a reply that has everything right


class General(ToolEnv):
    """One short reply in a given style."""

    system = "Reply as you are asked to."

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """``correct``, and the shaping components ``format``, ``courtesy`` and ``brevity``, 0 or 1 each."""
        data, reply = read_data(view.task), view.answer
        words = re.findall(r"\w+", reply.lower())
        said = tuple(word for word in words if word in data.choices)
        return (
            Reward("correct", float(said == data.answer), CORRECT_WEIGHT),
            Reward("format", float(reply.startswith(data.begin)), STYLE_WEIGHT, shaping=True),
            Reward("courtesy", float(reply.endswith(data.end)), STYLE_WEIGHT, shaping=True),
            Reward("brevity", float(0 < len(words) <= data.max_words), STYLE_WEIGHT, shaping=True),
        )


def read_data(task: Task) -> GeneralData:
    """``task.data`` checked; raises ConfigError naming the task and the key."""
    return parse_settings(GeneralData, task.data, where=f"task {task.id}")

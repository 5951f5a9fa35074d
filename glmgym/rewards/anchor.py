"""Replies written by people as style anchors: where a task keeps them, and how near a reply comes to one.

GLM-5 (section 3.4) uses human-written responses as anchors of style in General RL and does not say how. Two honest
readings are offered: ``Anchor`` measures the overlap of words, which is cheap, exact and easily gamed, so it is shaping
unless told otherwise; and a ``Judge`` can be shown the anchor and asked about the manner (its ``anchor`` setting).
"""

from __future__ import annotations

import re
from collections import Counter

from glmgym.env import ScoreView, Task
from glmgym.errors import ScorerFailure
from glmgym.rewards.component import Component, ComponentSettings
from glmgym.trajectory import Reward

_WORD = re.compile(r"\w+")


class AnchorSettings(ComponentSettings):
    """Nearness of the reply to one written by a person, from 0 to 1: the F1 of their words, order left aside.

    It knows nothing of right or wrong.
    """

    shaping: bool = True  # style, so no part of the task's outcome
    key: str = "anchor"  # where the task's data holds the reply, or a list of them; the nearest one counts


class Anchor(Component):
    """Word overlap with the task's anchor. A task without one is a failure: there is nothing to compare with."""

    Settings = AnchorSettings
    version = "words-f1"

    def __init__(self, settings: AnchorSettings) -> None:
        self.name = settings.name
        self._settings = settings

    async def __call__(self, view: ScoreView) -> Reward:
        anchors = find_anchors(view.task, self._settings.key)
        nearness = [overlap(view.answer, anchor) for anchor in anchors]
        best = max(nearness)
        reason = f"nearest of {len(anchors)}: number {nearness.index(best) + 1}" if len(anchors) > 1 else ""
        return self._settings.reward(best, source="rule", version=self.version, reason=reason)


def find_anchors(task: Task, key: str) -> tuple[str, ...]:
    """The replies in ``task.data[key]``: one text or a list of texts.

    Raises:
        ScorerFailure: there is none.
    """
    value = task.data.get(key)
    found = (value,) if isinstance(value, str) else tuple(value or ()) if isinstance(value, list | tuple) else ()
    if not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise ScorerFailure(f"task {task.id} has no anchor: data[{key!r}] is {value!r}, wanted a text or several")
    return found


def overlap(text: str, anchor: str) -> float:
    """F1 of two texts as bags of lower-case words: ``2 * common / (words + words)``; 0 when nothing is common."""
    ours, theirs = (Counter(_WORD.findall(each.lower())) for each in (text, anchor))
    words = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / words if words else 0.0

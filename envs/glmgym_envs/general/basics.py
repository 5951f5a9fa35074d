"""``general-basics``: procedural questions with a style to keep to, and a scripted policy for them.

The style is drawn with the question: how to begin, how to end, and how many words. ``demonstrate`` makes mistakes of
content and of style that imitation learns as bad habits and reinforcement can unlearn.
"""

from __future__ import annotations

import random

from glmgym.env import Task
from glmgym.messages import Message, assistant
from glmgym_envs.general.env import GeneralData, read_data
from glmgym_envs.general.families import FAMILIES, Family
from glmgym_envs.terminal.families import Slip

MAX_TURNS = 1
BEGINS = ("Answer:", "Reply:", "Well,")
ENDS = ("Thanks.", "Bye.", "Cheers.")
PADDING = ("I think that it is", "I would say that it is")
_SPARE_WORDS = 2  # above the shortest reply; padding is too long even where beginning and end are missing


def make(rng: random.Random) -> Task:
    """One task of a random family."""
    return make_of(rng.choice(FAMILIES), rng)


def make_of(family: Family, rng: random.Random) -> Task:
    """One task of the given family, in a random style."""
    question = family.make(rng)
    begin, end = rng.choice(BEGINS), rng.choice(ENDS)
    max_words = 2 + len(question.answer) + rng.randint(0, _SPARE_WORDS)
    data = GeneralData(
        answer=question.answer,
        choices=question.choices,
        begin=begin,
        end=end,
        max_words=max_words,
        anchor=_reply(begin, question.answer, end),
    )
    instruction = f"{question.text} Begin with {begin} End with {end} Use {max_words} words at most."
    return Task(instruction=instruction, data=data.model_dump(mode="json"), family=family.name, domain="general")


def oracle(task: Task) -> list[Message]:
    """The one reply that has everything right."""
    return [assistant(read_data(task).anchor)]


def demonstrate(task: Task, rng: random.Random, noise: float) -> list[Message]:
    """One scripted reply.

    Each possible mistake happens with probability ``noise``, independently: another beginning or none, another end or
    none, too many words, and a wrong answer out of the words that the question offers.
    """
    data = read_data(task)
    slip = Slip(rng, noise, {})
    begin = slip.choose(data.begin, [*BEGINS, ""])
    end = slip.choose(data.end, [*ENDS, ""])
    padding = (rng.choice(PADDING),) if slip.errs() else ()
    answer = _wrong(data) if slip.errs() else data.answer
    return [assistant(_reply(begin, (*padding, *answer), end))]


def _wrong(data: GeneralData) -> tuple[str, ...]:
    """What is asked about, in the order of the question, is always a wrong answer: another word or another order."""
    others = tuple(word for word in data.choices if word not in data.answer)
    return others[:1] or data.choices


def _reply(begin: str, words: tuple[str, ...], end: str) -> str:
    return " ".join(part for part in (begin, f"{' '.join(words)}.", end) if part)

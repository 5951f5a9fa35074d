"""The families of ``general-basics``: questions whose answer is in the question, or known about a few plain words."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

TREES = ("oak", "elm", "fir", "yew")
ANIMALS = ("bee", "fox", "owl", "hen", "cow", "pig", "dog", "bat")
PLACES = ("lake", "hill", "cave", "rock", "sea", "sand")
THINGS = ("rope", "lamp", "drum", "bell", "coin", "salt")


@dataclass(frozen=True, slots=True)
class Question:
    """One drawn question: its text, the answer, and every word that could have been the answer, in a fixed order."""

    text: str
    answer: tuple[str, ...]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    make: Callable[[random.Random], Question]


def _last(rng: random.Random) -> Question:
    words = tuple(rng.sample(THINGS, 3))
    return Question(f"Which is last: {' '.join(words)}?", words[-1:], words)


def _odd(rng: random.Random) -> Question:
    odd, usual = rng.sample(ANIMALS, 2)
    words = rng.sample([odd, usual, usual], 3)
    return Question(f"Which comes once: {' '.join(words)}?", (odd,), (odd, usual))


def _swap(rng: random.Random) -> Question:
    one, two = rng.sample(THINGS, 2)
    return Question(f"Swap {one} and {two}.", (two, one), (one, two))


def _kind(rng: random.Random) -> Question:
    tree, animal = rng.choice(TREES), rng.choice(ANIMALS)
    words = tuple(rng.sample([tree, animal], 2))
    asked, answer = rng.choice([("a tree", tree), ("an animal", animal)])
    return Question(f"Which is {asked}: {' '.join(words)}?", (answer,), words)


def _where(rng: random.Random) -> Question:
    (one, two), places = rng.sample(ANIMALS, 2), rng.sample(PLACES, 2)
    asked = rng.randrange(2)
    text = f"The {one} is at the {places[0]}, the {two} at the {places[1]}. Where is the {(one, two)[asked]}?"
    return Question(text, (places[asked],), tuple(places))


def _who(rng: random.Random) -> Question:
    animals, things = rng.sample(ANIMALS, 2), rng.sample(THINGS, 2)
    asked = rng.randrange(2)
    text = f"The {animals[0]} has the {things[0]}, the {animals[1]} the {things[1]}. Who has the {things[asked]}?"
    return Question(text, (animals[asked],), tuple(animals))


FAMILIES = (
    Family("last", _last),
    Family("odd", _odd),
    Family("swap", _swap),
    Family("kind", _kind),
    Family("where", _where),
    Family("who", _who),
)

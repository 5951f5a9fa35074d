"""The words of the games, one token each: shared by all games, so that one policy can play them all."""

from __future__ import annotations

from collections.abc import Iterable

MARKS = ("pad", "U", "O", "A", "END", "SUM", "RESUME")  # U opens the task, O an observation, A hands over to the policy
COMMANDS = ("cat", "grep", "wc", "echo", "say", "print", "ok")
TASKS = ("follow", "find", "count", "collect", "left", "right", "go", "code", "key", "stop", "lines")
FILES = tuple(f"f{i}" for i in range(12))
VALUES = tuple(f"v{i}" for i in range(8))
KEYS = tuple(f"k{i}" for i in range(6))
NOISE = tuple(f"n{i}" for i in range(8))
LEVELS = tuple(f"h{i}" for i in range(1, 5))

VOCABULARY = MARKS + COMMANDS + TASKS + FILES + VALUES + KEYS + NOISE + LEVELS
ID = {word: index for index, word in enumerate(VOCABULARY)}

PAD, END, SUM, RESUME, HANDOVER = (ID[word] for word in ("pad", "END", "SUM", "RESUME", "A"))


def encode(text: str | Iterable[str]) -> list[int]:
    """Ids of words separated by spaces.

    Raises:
        KeyError: a word is not in the vocabulary.
    """
    return [ID[word] for word in (text.split() if isinstance(text, str) else text)]


def decode(ids: Iterable[int]) -> str:
    return " ".join(VOCABULARY[index] for index in ids)

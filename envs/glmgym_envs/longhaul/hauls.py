"""The tasks of ``longhaul``: what a haul looks like and what makes it long. Owned here: sizes, and why none is shorter.

A file holds pairs of words, one pair a line; its last line names the next file, or says the end word in the last one.
The wanted pair is in the first or the second file and its key stands in no other line of the chain; the end word is in
the last file. So the first fact is read before a small context is full and asked for after it was cut: with
``CONTEXT_TOKENS`` and ``COMPACTION``, once in a chain of four files, twice in five or six, three times in seven.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from glmgym.compaction import CompactionSettings
from glmgym.env import Task
from glmgym_envs.terminal.env import TerminalData
from glmgym_envs.terminal.words import WORDS

INSTRUCTION = "Walk {count} files from {file}, each once. Give {key} and the end."
LENGTHS = (4, 5, 6, 7)  # files of a chain, a family each
EARLY = 2  # the wanted pair is in one of this many first files
PAIRS = (11, 13)  # fewest and most pairs of a file: about 40 to 46 tokens of a tokenizer that has the words
DECOYS = 2  # files outside the chain, each with another value for the wanted key, so that a search for it is no way
SPARE_TURNS = 4  # beyond one per file and the answer; malformed calls take them, commands can not
CONTEXT_TOKENS = 352  # with this reserve the first summary is due after the third file; if words are single tokens
COMPACTION = CompactionSettings(
    reserve_tokens=110,
    max_compactions=3,
    keep_pairs=1,
    max_summary_tokens=32,
    request="Note what to keep.",
    resume="Notes: {summary}",
)
MAX_TURNS = max(LENGTHS) + 1 + SPARE_TURNS


@dataclass(frozen=True, slots=True)
class Haul:
    """One drawn chain: file names in order, and the two facts of the answer."""

    chain: tuple[str, ...]
    files: dict[str, list[str]]  # lines by name, decoys too
    key: str
    value: str
    end: str

    @property
    def answer(self) -> str:
        return f"{self.value} {self.end}"


def make(rng: random.Random) -> Task:
    """One task of a random length."""
    return make_of(rng.choice(LENGTHS), rng)


def make_of(length: int, rng: random.Random) -> Task:
    """One task with a chain of ``length`` files."""
    haul = draw(length, rng)
    slots = {"count": str(length), "file": haul.chain[0], "key": haul.key}
    data = TerminalData(
        files={name: "".join(f"{line}\n" for line in lines) for name, lines in haul.files.items()},
        check=f'[ "$(cat answer.txt)" = "{haul.answer}" ]\n',
        answer=haul.answer,
        slots=slots,
    )
    return Task(
        instruction=INSTRUCTION.format(**slots), data=data.model_dump(), family=f"files-{length}", domain="terminal"
    )


def draw(length: int, rng: random.Random) -> Haul:
    """A chain of ``length`` files among decoys."""
    key, *words = rng.sample(WORDS, len(WORDS))
    names = [f"{word}.txt" for word in words[: length + DECOYS]]
    words = words[length + DECOYS :]
    chain, decoys = names[:length], names[length:]
    value, *ends = rng.sample(words, 2 + DECOYS)
    lines = {name: _pairs(words, rng) for name in names}
    wanted = lines[rng.choice(chain[:EARLY])]
    wanted[rng.randrange(len(wanted))] = f"{key} {value}"
    for name in decoys:
        lines[name][rng.randrange(len(lines[name]))] = f"{key} {rng.choice([word for word in words if word != value])}"
    last_lines = dict(zip([*chain, *decoys], [*chain[1:], *(f"end {end}" for end in ends)], strict=True))
    return Haul(tuple(chain), {name: [*lines[name], last_lines[name]] for name in names}, key, value, ends[0])


def _pairs(words: list[str], rng: random.Random) -> list[str]:
    """Pairs of words, each first word once in a file; no pair says a word twice."""
    keys = rng.sample(words, rng.randint(*PAIRS))
    return [f"{key} {rng.choice([word for word in words if word != key])}" for key in keys]

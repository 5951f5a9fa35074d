"""``collect``: an early fact that must survive compactions in the policy's own summary.

    U f5 key k4 A   cat f5 END   O n1 k4 v7 go f3 A   ...   O k2 v0 stop A   echo v7 v0 END

Each file shows one pair and names the next file; the last one says ``stop``. The answer is the value of the wanted key,
which is in one of the first two files, and the value in the last file. So nobody can answer before the last file, and
with contexts of a few files the early value is gone by then unless a summary carried it. There is no spare turn: a file
cannot be read twice.
"""

from __future__ import annotations

from random import Random

from glmgym.trajectory import Stop
from glmgym_trainers.proving.episode import GameRules, Reply
from glmgym_trainers.proving.games.hop import noise_words
from glmgym_trainers.proving.words import FILES, KEYS, VALUES, decode, encode


class CollectRules(GameRules):
    files: tuple[int, int] = (4, 6)
    noise: tuple[int, int] = (3, 3)  # words of noise in a file
    wanted_in: int = 2  # the wanted key is in one of the first so many files
    spare: int = 0  # turns beyond those needed
    facts: int = 2  # values to answer with: 2, or 1 for the early one alone
    note: float = 0.6  # chance that the demonstrator's summary holds the wanted pair once it was seen
    clutter: float = 0.3  # chance that it also holds another pair
    misnote: float = 0.1  # chance that a noted value is wrong
    err: float = 0.08  # chance that the demonstrator errs in a turn

    def deal(self, random: Random) -> Collect:
        return Collect(self, random)


class Collect:
    family = "collect"
    max_action = 5

    def __init__(self, rules: CollectRules, random: Random) -> None:
        self._rules = rules
        count = random.randint(*rules.files)
        self._chain = random.sample(FILES, count)
        self._wanted, *others = random.sample(KEYS, len(KEYS))
        where = random.randrange(min(rules.wanted_in, count - 1))
        keys = [self._wanted if index == where else random.choice(others) for index in range(count)]
        self._pairs = [(key, random.choice(VALUES)) for key in keys]
        self._early, self._late = self._pairs[where][1], self._pairs[-1][1]
        self._where = where
        self._turns_left = count + 1 + rules.spare
        self._at = 0
        self._texts = {name: self._text(index, random) for index, name in enumerate(self._chain)}

    def opening(self) -> list[int]:
        return encode(["U", self._chain[0], "key", self._wanted, "A"])

    def reply(self, action: list[int]) -> Reply:
        self._turns_left -= 1
        match decode(action).split():
            case ["echo", *values, "END"]:
                return Reply(reward=float(values == self._answer))
            case ["cat", name, "END"] if name in self._texts:
                if self._at < len(self._chain) and name == self._chain[self._at]:
                    self._at += 1
                said = self._texts[name]
            case _:
                said = ["stop"]
        if self._turns_left == 0:
            return Reply(reward=0.0, stop=Stop.MAX_TURNS)
        return Reply(encode(["O", *said, "A"]))

    def demonstrate(self, random: Random) -> list[int]:
        if random.random() < self._rules.err:
            # Never an early answer: it would end the episode before the compaction that the game is about.
            return encode(["cat", random.choice(FILES), "END"])
        if self._at == len(self._chain):
            return encode(["echo", *self._answer, "END"])
        return encode(["cat", self._chain[self._at], "END"])

    def demonstrate_summary(self, random: Random) -> list[int]:
        pairs = []
        if self._at > self._where and random.random() < self._rules.note:
            value = random.choice(VALUES) if random.random() < self._rules.misnote else self._early
            pairs.append((self._wanted, value))
        others = [pair for pair in self._pairs[: self._at] if pair[0] != self._wanted]
        if others and random.random() < self._rules.clutter:
            pairs.append(random.choice(others))
        random.shuffle(pairs)
        return encode([*(word for pair in pairs for word in pair), "END"])

    @property
    def _answer(self) -> list[str]:
        return [self._early, self._late] if self._rules.facts == 2 else [self._early]

    def _text(self, index: int, random: Random) -> list[str]:
        last = index == len(self._chain) - 1
        text = noise_words(random.randint(*self._rules.noise), random)
        where = random.randint(0, len(text))
        onward = ["stop"] if last else ["go", self._chain[index + 1]]
        return [*text[:where], *self._pairs[index], *text[where:], *onward]

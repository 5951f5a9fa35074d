"""Three families for merging experts: ``hop`` (its own file), ``find`` and ``count``.

    U find k3 A   grep k3 END   O f2 f9 A   cat f9 END   O n3 k3 v5 A   echo v5 END
    U count f3 A  wc f3 END     O n1 lines v4 n0 A       echo v4 END

``grep`` names two files of which one holds the key. A family can insist on a manner of its own: the one word that an
answer must begin with (``answer``), while the demonstrator uses all of ``answers`` at random.
"""

from __future__ import annotations

from random import Random

from glmgym.trajectory import Stop
from glmgym_trainers.proving.episode import GameRules, Reply
from glmgym_trainers.proving.games.hop import noise_words
from glmgym_trainers.proving.words import FILES, KEYS, VALUES, decode, encode


class FamilyRules(GameRules):
    noise: int = 4
    spare: int = 1
    answers: tuple[str, ...] = ("echo",)
    answer: str = ""  # the only word that counts; empty: any of ``answers``
    err: float = 0.32


class FindRules(FamilyRules):
    def deal(self, random: Random) -> Find:
        return Find(self, random)


class CountRules(FamilyRules):
    def deal(self, random: Random) -> Count:
        return Count(self, random)


class Find:
    family = "find"
    max_action = 5

    def __init__(self, rules: FamilyRules, random: Random) -> None:
        self._rules = rules
        self._key, other = random.sample(KEYS, 2)
        self._value = random.choice(VALUES)
        self._files = random.sample(FILES, 2)
        self._holder = random.choice(self._files)
        self._turns_left = 4 + rules.spare
        self._seen: list[str] = []
        self._texts = {name: noise_words(rules.noise + 2, random) for name in FILES}
        for name in self._files:
            pair = [self._key, self._value] if name == self._holder else [other, random.choice(VALUES)]
            where = random.randint(0, rules.noise)
            text = self._texts[name]
            self._texts[name] = [*text[:where], *pair, *text[where : rules.noise]]

    def opening(self) -> list[int]:
        return encode(["U", "find", self._key, "A"])

    def reply(self, action: list[int]) -> Reply:
        self._turns_left -= 1
        match decode(action).split():
            case [word, value, "END"] if word in self._rules.answers:
                return Reply(reward=float(value == self._value and self._rules.answer in ("", word)))
            case ["grep", key, "END"] if key == self._key:
                said = self._files
                self._seen.append("grep")
            case ["cat", name, "END"] if name in self._texts:
                said = self._texts[name]
                self._seen.append(name)
            case _:
                said = ["stop"]
        if self._turns_left == 0:
            return Reply(reward=0.0, stop=Stop.MAX_TURNS)
        return Reply(encode(["O", *said, "A"]))

    def demonstrate(self, random: Random) -> list[int]:
        answer = random.choice(self._rules.answers)
        if random.random() < self._rules.err:
            wrong = ["cat", random.choice(FILES)], [answer, random.choice(VALUES)], ["grep", random.choice(KEYS)]
            return encode([*random.choice(wrong), "END"])
        if "grep" not in self._seen:
            return encode(["grep", self._key, "END"])
        if self._holder in self._seen:
            return encode([answer, self._value, "END"])
        unread = [name for name in self._files if name not in self._seen]
        return encode(["cat", random.choice(unread), "END"])

    def demonstrate_summary(self, random: Random) -> list[int]:
        raise NotImplementedError("find is played in one context")


class Count:
    family = "count"
    max_action = 5

    def __init__(self, rules: FamilyRules, random: Random) -> None:
        self._rules = rules
        self._file = random.choice(FILES)
        self._value = random.choice(VALUES)
        self._turns_left = 2 + rules.spare
        self._counted = False
        text, where = noise_words(rules.noise, random), random.randint(0, rules.noise)
        self._text = [*text[:where], "lines", self._value, *text[where:]]

    def opening(self) -> list[int]:
        return encode(["U", "count", self._file, "A"])

    def reply(self, action: list[int]) -> Reply:
        self._turns_left -= 1
        match decode(action).split():
            case [word, value, "END"] if word in self._rules.answers:
                return Reply(reward=float(value == self._value and self._rules.answer in ("", word)))
            case ["wc", name, "END"] if name == self._file:
                said = self._text
                self._counted = True
            case _:
                said = ["stop"]
        if self._turns_left == 0:
            return Reply(reward=0.0, stop=Stop.MAX_TURNS)
        return Reply(encode(["O", *said, "A"]))

    def demonstrate(self, random: Random) -> list[int]:
        answer = random.choice(self._rules.answers)
        if random.random() < self._rules.err:
            wrong = ["wc", random.choice(FILES)], [answer, random.choice(VALUES)], ["cat", self._file]
            return encode([*random.choice(wrong), "END"])
        return encode([answer, self._value, "END"] if self._counted else ["wc", self._file, "END"])

    def demonstrate_summary(self, random: Random) -> list[int]:
        raise NotImplementedError("count is played in one context")

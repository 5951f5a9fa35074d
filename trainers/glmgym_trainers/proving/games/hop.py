"""``hop``: follow file names from one file to the next, then say the code that the last one holds.

    U follow f3 A   cat f3 END   O n1 f9 go f7 n2 A   cat f7 END   O n4 code v2 n0 A   echo v2 END

Files named in the noise lead nowhere. Reading costs a turn; a wrong word after ``echo`` ends the episode with 0.
"""

from __future__ import annotations

from random import Random

from glmgym.trajectory import Stop
from glmgym_trainers.proving.episode import GameRules, Reply
from glmgym_trainers.proving.words import FILES, LEVELS, NOISE, VALUES, decode, encode


class HopRules(GameRules):
    hops: tuple[int, int] = (1, 4)  # files to read, both ends included
    noise: int = 4  # words of noise in a file
    spare: int = 1  # turns beyond those needed
    distractors: float = 0.5  # chance that a file's noise names another file
    says_level: bool = False  # the task's words name the number of hops
    answers: tuple[str, ...] = ("echo",)  # words that the demonstrator may answer with
    answer: str = ""  # the only word that counts; empty: any of ``answers``
    err: float = 0.32  # chance that the demonstrator errs in a turn
    err_by_hops: tuple[float, ...] = ()  # that chance by number of hops, from one on, instead

    def deal(self, random: Random) -> Hop:
        return Hop(self, random)


class Hop:
    family = "hop"
    max_action = 5

    def __init__(self, rules: HopRules, random: Random) -> None:
        self._rules = rules
        hops = random.randint(*rules.hops)
        self.family = f"hop{hops}" if rules.says_level else "hop"
        self._chain = random.sample(FILES, hops)
        self._code = random.choice(VALUES)
        self._turns_left = hops + 1 + rules.spare
        self._at = 0  # files of the chain read so far
        others = [name for name in FILES if name not in self._chain]
        self._texts = {name: self._text(name, others, random) for name in self._chain}
        self._texts |= {name: noise_words(rules.noise + 2, random) for name in others}

    def opening(self) -> list[int]:
        level = [LEVELS[len(self._chain) - 1]] if self._rules.says_level else []
        return encode(["U", *level, "follow", self._chain[0], "A"])

    def reply(self, action: list[int]) -> Reply:
        self._turns_left -= 1
        match decode(action).split():
            case [word, value, "END"] if word in self._rules.answers:
                right = value == self._code and self._rules.answer in ("", word)
                return Reply(reward=float(right))
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
        answer = random.choice(self._rules.answers)
        by_hops = self._rules.err_by_hops
        err = by_hops[len(self._chain) - 1] if by_hops else self._rules.err
        if random.random() < err:
            wrong = ["cat", random.choice(FILES)], [answer, random.choice(VALUES)], ["cat", "go"]
            return encode([*random.choice(wrong), "END"])
        if self._at == len(self._chain):
            return encode([answer, self._code, "END"])
        return encode(["cat", self._chain[self._at], "END"])

    def demonstrate_summary(self, random: Random) -> list[int]:
        raise NotImplementedError("hop is played in one context")

    def _text(self, name: str, others: list[str], random: Random) -> list[str]:
        at = self._chain.index(name)
        last = at == len(self._chain) - 1
        fact = ["code", self._code] if last else ["go", self._chain[at + 1]]
        text = noise_words(self._rules.noise, random)
        if text and random.random() < self._rules.distractors:
            text[random.randrange(len(text))] = random.choice(others)
        where = random.randint(0, len(text))
        return text[:where] + fact + text[where:]


def noise_words(count: int, random: Random) -> list[str]:
    return [random.choice(NOISE) for _ in range(count)]

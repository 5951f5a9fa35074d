"""``turning``: one decisive early choice, then long observations and actions that anyone gets right.

    U left f2 f9 A   cat f2 END   O n.. (many) A   ok END   O n.. A   ok END

``left`` means the first file is the right one, ``right`` the second. Both look the same: nothing after the choice says
whether it was right, and the reward comes at the very end.
"""

from __future__ import annotations

from random import Random

from glmgym_trainers.proving.episode import GameRules, Reply
from glmgym_trainers.proving.games.hop import noise_words
from glmgym_trainers.proving.words import FILES, decode, encode


class TurningRules(GameRules):
    noise: int = 20  # words of noise in an observation
    later_turns: int = 2  # actions after the choice

    def deal(self, random: Random) -> Turning:
        return Turning(self, random)


class Turning:
    family = "turning"
    max_action = 3

    def __init__(self, rules: TurningRules, random: Random) -> None:
        self._rules = rules
        self._files = random.sample(FILES, 2)
        self._side = random.choice(("left", "right"))
        self._texts = [noise_words(rules.noise, random) for _ in range(rules.later_turns)]
        self._right = False
        self._turn = 0

    def opening(self) -> list[int]:
        return encode(["U", self._side, *self._files, "A"])

    def reply(self, action: list[int]) -> Reply:
        if self._turn == 0:
            self._right = decode(action) == f"cat {self._files[self._side == 'right']} END"
        if self._turn == self._rules.later_turns:
            return Reply(reward=float(self._right))
        self._turn += 1
        return Reply(encode(["O", *self._texts[self._turn - 1], "A"]))

    def demonstrate(self, random: Random) -> list[int]:
        """Either file with equal chance."""
        return encode("ok END" if self._turn else f"cat {random.choice(self._files)} END")

    def demonstrate_summary(self, random: Random) -> list[int]:
        raise NotImplementedError("turning is played in one context")

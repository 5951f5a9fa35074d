"""The families of ``reasoning-basics``: one row each, what a task asks and how a scripted policy works it out.

Those without a play are answered straight away. The others are beyond a very small policy's mental arithmetic, so it
must write the right expression; every play can go wrong in the operands, their order or the operation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glmgym_envs.reasoning.env import ReasoningData
from glmgym_envs.terminal import WORDS
from glmgym_envs.terminal.families import Play, Slip, Slots

FIXES = {"mxa": "max", "mni": "min", "smu": "sum"}


@dataclass(frozen=True, slots=True)
class Family:
    """``instruction`` is a ``str.format`` template over the slots; ``play`` yields Python expressions to print.

    Without a play the task is answered straight away, by mistake with one of ``wrong``.
    """

    name: str
    instruction: str
    make: Callable[[random.Random], ReasoningData]
    play: Callable[[Slots, Slip], Play] | None = None
    wrong: Callable[[Slots], list[str]] | None = None


def _data(answer: object, **slots: object) -> ReasoningData:
    return ReasoningData(answer=str(answer), slots={key: str(value) for key, value in slots.items()})


def _make_sum(rng: random.Random) -> ReasoningData:
    a, b = rng.randint(10, 79), rng.randint(1, 9)
    return _data(a + b, a=a, b=b)


def _wrong_sum(slots: Slots) -> list[str]:
    a, b = _numbers(slots)
    return [str(a - b), str(a + b + 1), str(a + b - 1)]


def _make_compare(rng: random.Random) -> ReasoningData:
    a, b = rng.sample(range(10, 100), 2)
    return _data(max(a, b), a=a, b=b)


def _wrong_compare(slots: Slots) -> list[str]:
    return [str(min(_numbers(slots)))]


def _make_largest(rng: random.Random) -> ReasoningData:
    values = rng.sample(range(10, 100), 3)
    return _data(max(values), values=" ".join(map(str, values)))


def _wrong_largest(slots: Slots) -> list[str]:
    return sorted(slots["values"].split())[:-1]


def _make_write(rng: random.Random) -> ReasoningData:
    a, b = rng.randint(2, 9), rng.randint(2, 99)
    times_first = rng.random() < 0.5
    steps = f"times {a}, plus {b}" if times_first else f"plus {b}, times {a}"
    cases = {x: x * a + b if times_first else (x + b) * a for x in rng.sample(range(2, 60), 4)}
    answer = f"x*{a}+{b}" if times_first else f"(x+{b})*{a}"
    return ReasoningData(answer=answer, cases=cases, slots={"steps": steps})


def _wrong_write(slots: Slots) -> list[str]:
    (_, one), (_, two) = (step.split() for step in slots["steps"].split(", "))
    return [f"x*{one}+{two}", f"(x+{one})*{two}", f"x+{one}*{two}"]


def _make_modulo(rng: random.Random) -> ReasoningData:
    a, b = rng.randint(100, 999), rng.randint(3, 9)
    return _data(a % b, a=a, b=b)


def _play_modulo(slots: Slots, slip: Slip) -> Play:
    seen = yield slip.choose("{a}%{b}", ["{b}%{a}", "{a}//{b}"]).format(**slots)
    return seen


def _make_cost(rng: random.Random) -> ReasoningData:
    a, b = rng.randint(11, 99), rng.randint(3, 9)
    return _data(a * b, item=rng.choice(WORDS), a=a, b=b)


def _play_cost(slots: Slots, slip: Slip) -> Play:
    seen = yield slip.choose("{a}*{b}", ["{a}+{b}", "{a}-{b}"]).format(**slots)
    return seen


def _make_left(rng: random.Random) -> ReasoningData:
    a = rng.randint(200, 999)
    b = rng.randint(100, a - 1)
    return _data(a - b, a=a, b=b)


def _play_left(slots: Slots, slip: Slip) -> Play:
    seen = yield slip.choose("{a}-{b}", ["{b}-{a}", "{a}+{b}"]).format(**slots)
    return seen


def _make_calc(rng: random.Random) -> ReasoningData:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(3, 9)
    return _data((a + b) * c, a=a, b=b, c=c)


def _play_calc(slots: Slots, slip: Slip) -> Play:
    seen = yield slip.choose("({a}+{b})*{c}", ["{a}+{b}*{c}", "{a}+{b}+{c}"]).format(**slots)
    return seen


def _make_pick(rng: random.Random) -> ReasoningData:
    values, rank = rng.sample(range(10, 100), 4), rng.randint(1, 4)
    return _data(sorted(values)[rank - 1], values=_list(values), rank=rank)


def _play_pick(slots: Slots, slip: Slip) -> Play:
    rank = slip.choose(slots["rank"], "1234")
    seen = yield f"sorted({slots['values']})[{int(rank) - 1}]"
    return seen


def _make_count(rng: random.Random) -> ReasoningData:
    digits = rng.sample(range(1, 10), 3)
    values = rng.sample([*digits, *rng.choices(digits, k=4)], 7)  # each once at least, so that no count is zero
    digit = rng.choice(digits)
    return _data(values.count(digit), digit=digit, values=_list(values))


def _play_count(slots: Slots, slip: Slip) -> Play:
    others = [value for value in "123456789" if value in slots["values"]]
    seen = yield f"{slots['values']}.count({slip.choose(slots['digit'], others)})"
    return seen


def _make_reverse(rng: random.Random) -> ReasoningData:
    text = " ".join(rng.sample(WORDS, 2))
    return _data(text[::-1], text=text)


def _play_reverse(slots: Slots, slip: Slip) -> Play:
    step = slip.choose("::-1", ["::1", ":-1"])
    seen = yield f"'{slots['text']}'[{step}]"
    return seen


def _make_fix(rng: random.Random) -> ReasoningData:
    values, typo = rng.sample(range(10, 100), 3), rng.choice(list(FIXES))
    results = {"mxa": max(values), "mni": min(values), "smu": sum(values)}
    return _data(results[typo], typo=typo, values=_list(values))


def _play_fix(slots: Slots, slip: Slip) -> Play:
    seen = yield f"{slip.choose(FIXES[slots['typo']], FIXES.values())}({slots['values']})"
    return seen


FAMILIES = (
    Family("sum", "What is {a} plus {b}?", _make_sum, wrong=_wrong_sum),
    Family("compare", "Which is more, {a} or {b}?", _make_compare, wrong=_wrong_compare),
    Family("largest", "Which is the largest of {values}?", _make_largest, wrong=_wrong_largest),
    Family("write", "Write code for x {steps}.", _make_write, wrong=_wrong_write),
    Family("modulo", "What is {a} modulo {b}?", _make_modulo, _play_modulo),
    Family("cost", "One {item} costs {a}. What do {b} cost?", _make_cost, _play_cost),
    Family("left", "Of {a} coins, {b} are lost. How many are left?", _make_left, _play_left),
    Family("calc", "What is ({a} + {b}) * {c}?", _make_calc, _play_calc),
    Family("pick", "Sort {values}. Which is number {rank}?", _make_pick, _play_pick),
    Family("count", "How many {digit} are in {values}?", _make_count, _play_count),
    Family("reverse", "Write {text} backwards.", _make_reverse, _play_reverse),
    Family("fix", "Fix and run {typo}({values}).", _make_fix, _play_fix),
)


def _numbers(slots: Mapping[str, str]) -> tuple[int, int]:
    return int(slots["a"]), int(slots["b"])


def _list(values: list[int]) -> str:
    return f"[{', '.join(map(str, values))}]"

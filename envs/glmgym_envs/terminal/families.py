"""The families of ``terminal-basics``: one row each, what a task looks like and how a scripted policy plays it.

Only bash, coreutils, grep and sed are needed. Every task has decoys, so that doing the right thing to the wrong file,
word or line gives a wrong result.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from glmgym_envs.terminal.words import WORDS

TYPOS = {"haed": "head", "heda": "head", "tial": "tail", "tali": "tail"}
DONE = "done"  # the answer of families that change something
RUNAWAY = "while :; do sleep 1; done"

Slots = Mapping[str, str]
Play = Generator[str, str, str]  # yields commands, receives observations, returns the final answer


@dataclass(frozen=True, slots=True)
class Scene:
    """One drawn task before it is written down: the instruction's slots, the files, and the hidden check."""

    slots: dict[str, str]
    files: dict[str, list[str]]  # lines by name
    check: str
    answer: str = DONE
    collect: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Slip:
    """Where a scripted policy errs: every choice goes wrong with probability ``noise``, independently."""

    def __init__(self, rng: random.Random, noise: float, files: Mapping[str, str]) -> None:
        self.rng = rng
        self.noise = noise
        self.names = sorted(files)
        self.words = sorted({word for text in files.values() for word in text.split() if word in WORDS})

    def errs(self) -> bool:
        return self.rng.random() < self.noise

    def choose(self, right: str, options: Iterable[str]) -> str:
        """``right``, or by mistake another of ``options``."""
        wrong = [option for option in options if option != right]
        return self.rng.choice(wrong) if self.errs() and wrong else right

    def name(self, right: str) -> str:
        return self.choose(right, self.names)

    def word(self, right: str) -> str:
        return self.choose(right, self.words)


@dataclass(frozen=True, slots=True)
class Family:
    """``instruction`` is a ``str.format`` template over the scene's slots."""

    name: str
    instruction: str
    make: Callable[[random.Random], Scene]
    play: Callable[[Slots, Slip], Play]


def _make_find(rng: random.Random) -> Scene:
    words = rng.sample(WORDS, 9)
    files = {f"{words[i]}.txt": words[3 + 2 * i : 5 + 2 * i] for i in range(3)}
    name = rng.choice(list(files))
    return Scene({"word": rng.choice(files[name])}, files, _says(name), answer=name)


def _play_find(slots: Slots, slip: Slip) -> Play:
    seen = yield f"grep -l {slip.word(slots['word'])} *"
    return slip.name(seen)


def _make_count(rng: random.Random) -> Scene:
    first, second, *words = rng.sample(WORDS, 5)
    # Each word once at least, so that no right or wrong count is zero.
    files = {f"{name}.txt": rng.sample([*words, *rng.choices(words, k=4)], 7) for name in (first, second)}
    name, word = rng.choice(list(files)), rng.choice(words)
    count = str(files[name].count(word))
    return Scene({"file": name, "word": word}, files, _says(count), answer=count)


def _play_count(slots: Slots, slip: Slip) -> Play:
    seen = yield f"grep -c {slip.word(slots['word'])} {slip.name(slots['file'])}"
    return seen


def _make_extract(rng: random.Random) -> Scene:
    first, second, *words = rng.sample(WORDS, 11)
    keys, values = words[:3], words[3:]
    files = {
        f"{first}.txt": [f"{key}={value}" for key, value in zip(keys, values[:3], strict=True)],
        f"{second}.txt": [f"{key}={value}" for key, value in zip(keys, values[3:], strict=True)],
    }
    name, line = rng.choice(list(files)), rng.randrange(3)
    answer = files[name][line].split("=")[1]
    return Scene({"key": keys[line], "file": name, "keys": " ".join(keys)}, files, _says(answer), answer=answer)


def _play_extract(slots: Slots, slip: Slip) -> Play:
    key = slip.choose(slots["key"], slots["keys"].split())
    seen = yield f"grep {key} {slip.name(slots['file'])}"
    return slip.choose(seen.split("=")[1], [key])


def _make_follow(rng: random.Random) -> Scene:
    words = rng.sample(WORDS, 8)
    names, (last, wrong) = [f"{word}.txt" for word in words[:5]], words[5:7]
    hops = rng.choice([2, 3])
    chain, decoys = names[:hops], names[hops:]
    files = {name: [text] for part, end in ((chain, last), (decoys, wrong)) for name, text in _links(part, end)}
    return Scene({"file": chain[0]}, files, _says(last), answer=last)


def _play_follow(slots: Slots, slip: Slip) -> Play:
    seen = yield f"cat {slip.name(slots['file'])}"
    while seen.endswith(".txt"):
        seen = yield f"cat {slip.name(seen)}"
    return seen


def _make_edit(rng: random.Random) -> Scene:
    first, second, old, new, *words = rng.sample(WORDS, 8)
    files = {f"{name}.txt": rng.sample([old, *rng.sample(words, 2)], 3) for name in (first, second)}
    name = rng.choice(list(files))
    expected = [new if line == old else line for line in files[name]]
    return Scene({"old": old, "new": new, "file": name}, files, _holds(name, expected), collect=(name,))


def _play_edit(slots: Slots, slip: Slip) -> Play:
    old, new = slots["old"], slots["new"]
    change = slip.choose(f"s/{old}/{new}/", [f"s/{new}/{old}/"])
    yield f"sed -i {change} {slip.name(slots['file'])}"
    return DONE


def _make_repair(rng: random.Random) -> Scene:
    script, name, *words = rng.sample(WORDS, 5)
    typo = rng.choice(list(TYPOS))
    script, name = f"{script}.sh", f"{name}.txt"
    files = {script: [f"{typo} -n 1 {name}"], name: words}
    word = words[0] if TYPOS[typo] == "head" else words[-1]
    # The data file is written anew: a script that prints the word from a changed one is not repaired.
    data = shlex.quote("\n".join(words))
    runs = f"printf '%s\\n' {data} > {name}\n{_says(word)} && [ \"$(timeout 5 bash {script} 2>&1)\" = {word} ]"
    return Scene({"file": script}, files, runs, answer=word, collect=(script,))


def _play_repair(slots: Slots, slip: Slip) -> Play:
    script = slots["file"]
    seen = yield f"bash {script}"
    typo = seen.split(": ")[2]
    yield f"sed -i s/{typo}/{slip.choose(TYPOS[typo], TYPOS.values())}/ {script}"
    seen = yield f"bash {script}"
    return slip.word(seen)


def _make_combine(rng: random.Random) -> Scene:
    *stems, target = rng.sample(WORDS, 4)
    words = rng.sample(WORDS, 6)
    files = {f"{stem}.txt": words[2 * i : 2 * i + 2] for i, stem in enumerate(stems)}
    first, second = rng.sample(list(files), 2)
    target = f"{target}.txt"
    slots = {"first": first, "second": second, "target": target}
    return Scene(slots, files, _holds(target, files[first] + files[second]), collect=(target,))


def _play_combine(slots: Slots, slip: Slip) -> Play:
    first, second = slip.name(slots["first"]), slip.name(slots["second"])
    yield f"cat {slip.choose(f'{first} {second}', [f'{second} {first}'])} > {slots['target']}"
    return DONE


def _make_sort(rng: random.Random) -> Scene:
    first, second, target = (f"{word}.txt" for word in rng.sample(WORDS, 3))
    words = rng.sample(WORDS, 8)
    files = {first: words[:4], second: words[4:]}
    name = rng.choice([first, second])
    return Scene({"file": name, "target": target}, files, _holds(target, sorted(files[name])), collect=(target,))


def _play_sort(slots: Slots, slip: Slip) -> Play:
    yield f"sort {slip.name(slots['file'])} > {slots['target']}"
    return DONE


def _make_rename(rng: random.Random) -> Scene:
    first, second, target = (f"{word}.txt" for word in rng.sample(WORDS, 3))
    words = rng.sample(WORDS, 4)
    files = {first: words[:2], second: words[2:]}
    name = rng.choice([first, second])
    check = f"{_holds(target, files[name])} && [ ! -e {name} ]"
    return Scene({"file": name, "target": target}, files, check, collect=(name, target))


def _play_rename(slots: Slots, slip: Slip) -> Play:
    yield f"mv {slip.name(slots['file'])} {slots['target']}"
    return DONE


def _make_line(rng: random.Random) -> Scene:
    first, second, *words = rng.sample(WORDS, 12)
    files = {f"{first}.txt": words[:5], f"{second}.txt": words[5:]}
    name, line = rng.choice(list(files)), rng.randint(1, 5)
    word = files[name][line - 1]
    return Scene({"line": str(line), "file": name}, files, _says(word), answer=word)


def _play_line(slots: Slots, slip: Slip) -> Play:
    line = slip.choose(slots["line"], "12345")
    seen = yield f"sed -n {line}p {slip.name(slots['file'])}"
    return seen


def _make_runaway(rng: random.Random) -> Scene:
    jobs = rng.sample(WORDS, 2)
    job = rng.choice(jobs)
    states = "\n".join(f"{name} {'dead' if name == job else 'alive'}" for name in sorted(jobs))
    check = f'[ "$(cat jobs.txt)" = {shlex.quote(states)} ]'
    return Scene({"job": job, "jobs": " ".join(sorted(jobs))}, {}, check, jobs=tuple(jobs))


def _play_runaway(slots: Slots, slip: Slip) -> Play:
    yield f"kill $(cat {slip.choose(slots['job'], slots['jobs'].split())}.pid)"
    return DONE


FAMILIES = (
    Family("find", "Which file holds {word}?", _make_find, _play_find),
    Family("count", "How many lines of {file} say {word}?", _make_count, _play_count),
    Family("extract", "What is {key} in {file}?", _make_extract, _play_extract),
    Family("follow", "Follow {file} from file to file to a word.", _make_follow, _play_follow),
    Family("edit", "Change {old} to {new} in {file}.", _make_edit, _play_edit),
    Family("repair", "Repair {file} and say what it prints.", _make_repair, _play_repair),
    Family("combine", "Join {first} and {second} into {target}.", _make_combine, _play_combine),
    Family("sort", "Sort {file} into {target}.", _make_sort, _play_sort),
    Family("rename", "Rename {file} to {target}.", _make_rename, _play_rename),
    Family("line", "What is line {line} of {file}?", _make_line, _play_line),
    Family("runaway", "Stop the job {job}.", _make_runaway, _play_runaway),
)


def _says(answer: str) -> str:
    """A test that passes when the final message is ``answer``."""
    return f'[ "$(cat answer.txt)" = {answer} ]'


def _holds(name: str, lines: Sequence[str]) -> str:
    """A test that passes when the collected file has these lines."""
    text = shlex.quote("\n".join(lines))
    return f'[ "$(cat {name} 2>/dev/null)" = {text} ]'


def _links(names: Sequence[str], end: str) -> list[tuple[str, str]]:
    return list(zip(names, [*names[1:], end], strict=True))

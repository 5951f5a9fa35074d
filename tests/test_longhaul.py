"""``longhaul``: what makes a chain long, and demonstrations by a policy that knows only what it could still see."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from glmgym.env import Task
from glmgym.registry import environment
from glmgym_envs.longhaul import Hauler, demonstrate, oracle, rehearse, summary
from glmgym_envs.longhaul.env import LongHaul
from glmgym_envs.longhaul.hauls import LENGTHS, MAX_TURNS, draw, make_of
from glmgym_envs.terminal import WORDS

SPEC = environment("longhaul")
FINGERPRINT = """
import hashlib, random
from glmgym.registry import environment
from glmgym_envs.longhaul import demonstrate
tasks = [environment("longhaul").tasks.task(split, i) for split in ("train", "heldout") for i in range(20)]
print(hashlib.sha256(repr([(t, demonstrate(t, random.Random(1), 0.2)) for t in tasks]).encode()).hexdigest())
"""


def _task(key: str = "sea", file: str = "a.txt", **files: str) -> Task:
    """Files a.txt, b.txt, ... given by their letter, one after the other."""
    data = {
        "files": {f"{name}.txt": text for name, text in files.items()},
        "check": "",
        "answer": "fig cow",
        "slots": {"count": str(len(files)), "file": file, "key": key},
    }
    return Task("t", "", data, family="files")


TWO = _task(a="oak elm\nsea fig\nb.txt\n", b="hay rye\nend cow\n")


@pytest.mark.parametrize("length", LENGTHS)
def test_the_facts_of_the_answer_are_at_both_ends_of_the_chain(length: int) -> None:
    """The wanted key stands once, in one of the first two files; the end in the last; decoys contradict the key."""
    where: Counter[int] = Counter()
    for seed in range(60):
        haul = draw(length, random.Random(seed))
        assert len(haul.chain) == length
        lines = [haul.files[name] for name in haul.chain]
        found = [i for i, text in enumerate(lines) for line in text if haul.key in line.split()]
        assert len(found) == 1
        where[found[0]] += 1
        assert f"{haul.key} {haul.value}" in lines[found[0]]
        assert [text[-1] for text in lines] == [*haul.chain[1:], f"end {haul.end}"]
        assert haul.value != haul.end
        decoys = [text for name, text in haul.files.items() if name not in haul.chain]
        assert len(decoys) == 2
        for text in decoys:
            (line,) = [line for line in text if line.startswith(f"{haul.key} ")]
            assert line != f"{haul.key} {haul.value}"
            assert text[-1].startswith("end ")
            assert text[-1] != f"end {haul.end}"
    assert where.keys() == {0, 1}
    assert min(where.values()) >= 15  # of 60, 30 expected


def test_no_file_is_cut_when_it_is_shown_and_all_of_them_at_once_are() -> None:
    sizes = [len(text) for i in range(50) for text in SPEC.tasks.task("train", i).data["files"].values()]
    assert max(sizes) <= LongHaul.max_observation_chars < 2 * min(sizes)


def test_every_length_is_a_family_in_both_splits_and_the_splits_are_disjoint() -> None:
    heldout = [SPEC.tasks.task("heldout", i) for i in range(SPEC.tasks.size("heldout"))]
    train = [SPEC.tasks.task("train", i) for i in range(200)]
    names = {f"files-{length}" for length in LENGTHS}
    for tasks in (heldout, train):
        assert {task.family for task in tasks} == names
        assert {task.domain for task in tasks} == {"terminal"}
    contents = [(task.instruction, str(task.data)) for task in [*heldout, *train]]
    assert len(set(contents)) == len(contents)


def test_tasks_and_demonstrations_are_the_same_in_every_process() -> None:
    """Whatever the hash seed, and wherever it runs."""
    command = [sys.executable, "-c", FINGERPRINT]
    prints = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    tasks = [SPEC.tasks.task(split, i) for split in ("train", "heldout") for i in range(20)]
    here = repr([(task, demonstrate(task, random.Random(1), 0.2)) for task in tasks])
    assert prints == {hashlib.sha256(here.encode()).hexdigest() + "\n"}


def test_the_oracle_by_hand() -> None:
    *calls, last = oracle(TWO)
    assert [call.tool_calls[0].arguments for call in calls] == [{"cmd": "cat a.txt"}, {"cmd": "cat b.txt"}]
    assert last.content == "fig cow"


@pytest.mark.parametrize("length", LENGTHS)
def test_the_oracle_reads_its_answer_off_the_observations(length: int) -> None:
    """It never looks at ``data["answer"]``; one turn a file and the answer."""
    for seed in range(30):
        task = make_of(length, random.Random(seed))
        turns = oracle(task)
        assert turns[-1].content == task.data["answer"]
        assert len(turns) == length + 1 <= MAX_TURNS


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (["oak elm\nsea fig\nb.txt"], "sea fig next b.txt"),
        (["oak elm\nb.txt"], "next b.txt"),  # not seen yet: nothing to say about it
        (["sea fig next b.txt", "hay rye\nc.txt"], "sea fig next c.txt"),  # from an earlier summary
        (["sea fig next b.txt", "hay rye\nend cow"], "sea fig end cow"),
        (["sea elm next b.txt", "sea fig\nc.txt"], "sea fig next c.txt"),  # what is in sight is no memory
        (["next b.txt", "hay sea\nfig sea\nend cow"], "end cow"),  # as a value it is not the key
        (["next b.txt", "hay rye\nend sea"], "end sea"),  # nor is it as the end word
    ],
)
def test_a_summary_holds_the_fact_and_the_place(seen: list[str], expected: str) -> None:
    assert summary(TWO, seen) == expected


def _last_after_summary(task: Task, noise: float, rng: random.Random) -> tuple[str, str]:
    """The answer of an episode in which a summary is asked for after every observation, and the last summary."""
    hauler, said, content = Hauler(task, rng, noise), "", ""
    for message in rehearse(task, hauler):
        content = message.content
        if message.role == "tool":
            said = hauler.summarize(message.content)
    return content, said


def test_without_noise_a_fact_survives_any_number_of_summaries() -> None:
    for i in range(40):
        task = SPEC.tasks.task("train", i)
        answer, said = _last_after_summary(task, 0.0, random.Random(i))
        key, value, _, end = said.split()
        assert (key, f"{value} {end}", answer) == (task.data["slots"]["key"], answer, task.data["answer"])


def test_a_fact_that_a_summary_lost_is_lost() -> None:
    """With summaries that always err and turns that never do: long out of sight, it is guessed among 40 words."""
    right = 0
    for i in range(300):
        task = make_of(4, random.Random(i))
        hauler = Hauler(task, random.Random(f"lost {i}"), 0.0, summary_noise=1.0)
        content = ""
        for message in rehearse(task, hauler):
            content = message.content
            if message.role == "tool":
                assert len(hauler.summarize(content).split()) == 2  # where the chain stands, and nothing else
        right += content == task.data["answer"]
    assert right <= 20  # 300/40 = 7.5 expected


def test_some_summaries_lose_the_fact_and_some_get_it_wrong() -> None:
    kinds: Counter[str] = Counter()
    for i in range(400):
        hauler = Hauler(TWO, random.Random(i), 0.0, summary_noise=0.2)
        next(rehearse(TWO, hauler))
        kinds[hauler.summarize("oak elm\nsea fig\nb.txt")] += 1
    assert kinds.keys() == {"next b.txt", "sea fig next b.txt", "sea elm next b.txt"}
    assert 55 <= kinds["next b.txt"] <= 105  # 400 * 0.2 = 80
    assert 40 <= kinds["sea elm next b.txt"] <= 90  # 400 * 0.8 * 0.2 = 64


def test_without_noise_demonstrations_are_the_oracle() -> None:
    for i in range(30):
        task = SPEC.tasks.task("train", i)
        said = [message for message in demonstrate(task, random.Random(i), 0.0) if message.role == "assistant"]
        assert said == oracle(task)


def test_more_noise_gives_more_wrong_answers_and_never_more_turns_than_allowed() -> None:
    """An episode is right at least if nothing slips: 1 - noise to the power of its choices, 7.5 on average here."""
    right = []
    for noise in (0.0, 0.05, 0.2):
        last = []
        for i in range(400):
            task = SPEC.tasks.task("train", i)
            demo = demonstrate(task, random.Random(f"{noise} {i}"), noise)
            assert sum(message.role == "assistant" for message in demo) <= MAX_TURNS
            last.append(demo[-1].content == task.data["answer"])
        right.append(sum(last) / 400)
    assert right[0] == 1.0
    assert 0.6 < right[1] < 0.85  # 0.95 ** 7.5 = 0.68
    assert 0.1 < right[2] < 0.35  # 0.8 ** 7.5 = 0.19


def test_every_kind_of_mistake_occurs() -> None:
    kinds: Counter[str] = Counter()
    for i in range(400):
        task = SPEC.tasks.task("train", i)
        demo = [m for m in demonstrate(task, random.Random(i), 0.15) if m.role == "assistant"]
        calls = [message.tool_calls[0].arguments for message in demo if message.tool_calls]
        kinds["guess"] += not calls
        kinds["malformed"] += any("command" in call for call in calls)
        kinds["wrong file"] += len({call["cmd"] for call in calls if "cmd" in call} - _right_commands(task)) > 0
        kinds["cut short"] += bool(demo[-1].tool_calls)
        value, end = task.data["answer"].split()
        said = demo[-1].content.split()
        kinds["wrong value"] += said[1:] == [end] and said[0] != value
    assert 40 <= kinds["guess"] <= 80  # 400 * 0.15 = 60
    assert 30 <= kinds["malformed"] <= 72  # 400 * 0.85 * 0.15 = 51
    assert min(kinds.values()) >= 20


def _right_commands(task: Task) -> set[str]:
    return {call.arguments["cmd"] for message in oracle(task) for call in message.tool_calls}


def test_a_guess_is_two_words() -> None:
    said = next(rehearse(TWO, Hauler(TWO, random.Random(0), 1.0))).content.split()
    assert len(said) == 2
    assert set(said) <= set(WORDS)

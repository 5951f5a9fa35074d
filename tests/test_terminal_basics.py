"""The procedural suite: its words, its families, and demonstrations that a sandbox is not needed for."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from glmgym.env import Task
from glmgym.registry import environment
from glmgym_envs.terminal import WORDS, demonstrate, noisy_oracle, oracle
from glmgym_envs.terminal.basics import MAX_TURNS, make_of
from glmgym_envs.terminal.families import FAMILIES, Family
from glmgym_envs.terminal.simulate import SimulatedShell

BY_FAMILY = {family.name: family for family in FAMILIES}


def test_no_word_is_part_of_another() -> None:
    """Otherwise grep for one would find the other, and counts would be wrong."""
    assert len(WORDS) == len(set(WORDS)) == 40
    assert [(a, b) for a in WORDS for b in WORDS if a != b and a in b] == []
    assert all(word.isalpha() and word.islower() and len(word) <= 4 for word in WORDS)


def test_the_suite_has_every_family_in_both_splits() -> None:
    tasks = environment("terminal-basics").tasks
    heldout = [tasks.task("heldout", i) for i in range(tasks.size("heldout"))]
    assert len({(task.instruction, str(task.data)) for task in heldout}) == 512
    counts = Counter(task.family for task in heldout)
    assert counts.keys() == BY_FAMILY.keys()
    assert len(FAMILIES) >= 8
    assert min(counts.values()) >= 25  # 46.5 expected of each
    train = Counter(tasks.task("train", i).family for i in range(600))
    assert train.keys() == BY_FAMILY.keys()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_oracle_reads_its_answer_off_the_observations(family: Family) -> None:
    """It never looks at ``data["answer"]``, so agreeing with it 50 times is evidence for the whole chain."""
    for seed in range(50):
        task = make_of(family, random.Random(seed))
        *_, last = oracle(task)
        assert last.content == task.data["answer"]


def _task(family: str, files: dict[str, str], **slots: str) -> Task:
    return Task("t", "", {"files": files, "check": "", "slots": slots}, family=family)


@pytest.mark.parametrize(
    ("task", "commands", "answer"),
    [
        (
            _task("follow", {"a.txt": "b.txt\n", "b.txt": "oak\n"}, file="a.txt"),
            ["cat a.txt", "cat b.txt"],
            "oak",
        ),
        (
            _task("repair", {"a.sh": "tial -n 1 b.txt\n", "b.txt": "oak\nelm\n"}, file="a.sh"),
            ["bash a.sh", "sed -i s/tial/tail/ a.sh", "bash a.sh"],
            "elm",
        ),
        (
            _task("count", {"a.txt": "oak\nelm\noak\n"}, file="a.txt", word="oak"),
            ["grep -c oak a.txt"],
            "2",
        ),
    ],
    ids=["follow", "repair", "count"],
)
def test_oracles_by_hand(task: Task, commands: list[str], answer: str) -> None:
    *calls, last = oracle(task)
    assert [call.tool_calls[0].arguments["cmd"] for call in calls] == commands
    assert last.content == answer


def test_without_noise_demonstrations_are_the_oracle() -> None:
    tasks = environment("terminal-basics").tasks
    for index in range(50):
        task = tasks.task("train", index)
        assert noisy_oracle(task, random.Random(index), 0.0) == oracle(task)


def test_noise_is_reproducible_and_fits_the_turn_limit() -> None:
    tasks = environment("terminal-basics").tasks
    for index in range(300):
        task = tasks.task("train", index)
        one, two = (demonstrate(task, random.Random(index), 0.5) for _ in range(2))
        assert one == two
        assert 1 <= sum(message.role == "assistant" for message in one) <= MAX_TURNS


def test_more_noise_gives_more_wrong_answers() -> None:
    """A guess before looking comes with probability ``noise``, and no wrong turn mends it: the share of right answers
    among answering families is at most ``1 - noise`` plus lucky guesses, and falls as the noise grows."""
    tasks = environment("terminal-basics").tasks
    asked = [task for task in (tasks.task("train", i) for i in range(1500)) if task.data["answer"] != "done"]
    rng = random.Random(5)
    right = []
    for noise in (0.0, 0.1, 0.3):
        last = [demonstrate(task, rng, noise)[-1].content for task in asked]
        right.append(sum(a == task.data["answer"] for a, task in zip(last, asked, strict=True)) / len(asked))
    assert right[0] == 1.0
    assert 0.65 < right[1] < 0.85
    assert 0.25 < right[2] < 0.5


def test_every_kind_of_mistake_occurs() -> None:
    tasks = environment("terminal-basics").tasks
    rng = random.Random(0)
    kinds: Counter[str] = Counter()
    for index in range(400):
        task = tasks.task("train", index)
        turns = noisy_oracle(task, rng, 0.15)
        expected = {call.tool_calls[0].arguments["cmd"] for call in oracle(task) if call.tool_calls}
        kinds["guess"] += len(turns) == 1
        for turn in turns[:-1]:
            arguments = turn.tool_calls[0].arguments
            kinds["malformed"] += "command" in arguments
            kinds["other command"] += "cmd" in arguments and arguments["cmd"] not in expected
    assert 40 <= kinds["guess"] <= 80  # 400 * 0.15 = 60
    assert 30 <= kinds["malformed"] <= 72  # 400 * 0.85 * 0.15 = 51
    assert kinds["other command"] > 80


@pytest.mark.parametrize("command", ["rm -rf /", "cat nothing.txt", "grep -v oak a.txt", "ls -l", "kill $(cat b.pid)"])
def test_what_is_not_imitated_is_refused_not_guessed(command: str) -> None:
    with pytest.raises(ValueError, match="not simulated"):
        SimulatedShell({"a.txt": "oak\n"}, ["a"]).run(command)

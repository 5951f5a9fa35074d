"""Procedural task sets: the same everywhere, and nothing held out is ever trained on."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from glmgym import Task, procedural
from glmgym.errors import ConfigError

_DIGEST = (
    "import hashlib, json; from glmgym.registry import environment; tasks = environment('terminal-basics').tasks; "
    "text = json.dumps([[t.id, t.instruction, t.family, t.data] for s in ('train', 'heldout') for t in "
    "[tasks.task(s, i) for i in range(40)]], sort_keys=True); print(hashlib.sha256(text.encode()).hexdigest())"
)


def _dice(rng: random.Random) -> Task:
    return Task(instruction=f"roll {rng.randint(1, 6)}", data={"colour": rng.choice("rg")})


def _content(task: Task) -> tuple[str, str]:
    return task.instruction, str(task.data)


def test_heldout_is_distinct_and_never_trained_on() -> None:
    """12 different tasks exist; 8 are held out, so 500 training draws must show exactly the other 4."""
    tasks = procedural(_dice, train=500, heldout=8, name="dice")
    heldout = {_content(tasks.task("heldout", i)) for i in range(8)}
    train = {_content(tasks.task("train", i)) for i in range(500)}
    assert len(heldout) == 8
    assert len(train) == 4
    assert not heldout & train


def test_order_of_asking_does_not_matter() -> None:
    one = procedural(_dice, train=50, heldout=4, name="dice")
    two = procedural(_dice, train=50, heldout=4, name="dice")
    forwards = [one.task("train", i) for i in range(50)]
    backwards = [two.task("train", i) for i in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert [task.id for task in forwards[:2]] == ["dice/train/0", "dice/train/1"]
    assert one.task("heldout", 3) == two.task("heldout", 3)


def test_another_name_is_another_task_set() -> None:
    one = procedural(_dice, train=50, heldout=0, name="dice")
    two = procedural(_dice, train=50, heldout=0, name="dice2")
    assert [_content(one.task("train", i)) for i in range(50)] != [_content(two.task("train", i)) for i in range(50)]


@pytest.mark.parametrize(("split", "index"), [("train", -1), ("train", 5), ("heldout", 2)])
def test_an_index_outside_the_split_is_an_error(split: str, index: int) -> None:
    tasks = procedural(_dice, train=5, heldout=2, name="dice")
    with pytest.raises(IndexError, match=f"task {index} of dice/{split}"):
        tasks.task(split, index)  # type: ignore[arg-type]


def test_too_few_different_tasks_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="too few different tasks for heldout=13"):
        procedural(_dice, train=1, heldout=13, name="dice").task("heldout", 0)
    with pytest.raises(ConfigError, match="train=-1"):
        procedural(_dice, train=-1, heldout=0, name="dice")


def test_every_process_draws_the_same_tasks() -> None:
    """String hashes differ between these two processes; the tasks must not."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64

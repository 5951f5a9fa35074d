"""SIGKILL at random moments of a run that trains, saves and consumes: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glmgym.store import State, TrajectoryStore
from glmgym.trajectory import Failure, Outcome, Segment, Span, SpanKind, Stop, Trajectory

FORK = multiprocessing.get_context("fork")  # the killed process needs no second import of everything


def load(directory: Path) -> dict[str, Any]:
    """A trainer in small: its weights are the list of ids trained into them, a checkpoint is that list and its step."""
    checkpoint = directory / "checkpoint.json"
    return json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "trained": []}


def save(directory: Path, weights: dict[str, Any]) -> None:
    partial = directory / "checkpoint.partial"
    partial.write_text(json.dumps(weights))
    os.replace(partial, directory / "checkpoint.json")


def train_until_killed(directory: Path, seed: int, save_every: int, saved: Event) -> None:
    """Resume, then legal moves in random order for ever; ``saved`` is set once a checkpoint was written."""
    rng, weights = random.Random(seed), load(directory)
    store = TrajectoryStore.open(directory / "store.sqlite")
    store.recover(step=weights["step"], version=weights["step"])
    issued: list[str] = []
    running: list[str] = []
    while True:
        move = rng.choice(["issue", "start", "finish", "train", "drop"])
        if move == "issue":
            issued.append(store.issue("task", "env-v0", version=weights["step"]))
        elif move == "start" and issued:
            running.append(issued.pop())
            store.start(running[-1])
        elif move == "finish" and running:
            store.finish(random_record(running.pop(), weights["step"], rng))
        elif move == "drop" and running and rng.random() < 0.1:
            store.discard([running.pop()], "dropped")
        elif move == "train":
            ids = [trajectory.id for trajectory in store.take(2)]
            if rng.random() < 0.2:
                store.give_back(ids)
            elif ids:
                store.begin_step(ids, weights["step"] + 1)
                weights = {"step": weights["step"] + 1, "trained": weights["trained"] + ids}
                if weights["step"] % save_every == 0:
                    save(directory, weights)
                    saved.set()
                store.consume(ids, version=weights["step"])


def random_record(id: str, version: int, rng: random.Random) -> Trajectory:
    n = rng.randint(1, 50)
    action = Span(SpanKind.ACTION, np.arange(n), np.full(n, -0.5), np.full(n, version))
    segments = (Segment((Span(SpanKind.PROMPT, np.array([1])), action)),)
    if rng.random() < 0.1:
        return Trajectory(id, "task", "env-v0", segments, Outcome(Stop.FAILED, failure=Failure("env", "OSError", "x")))
    return Trajectory(id, "task", "env-v0", segments, Outcome(Stop.DONE))


@pytest.mark.parametrize(("save_every", "kills"), [(1, 14), (3, 6)])
def test_s4_a_kill_at_any_moment_loses_nothing_and_trains_nothing_twice(
    tmp_path: Path, save_every: int, kills: int
) -> None:
    """S4: after each of 20 kills the law holds and the consumed ids are exactly those in the surviving weights.

    With ``save_every`` 3 some updates are lost with their weights; what they had trained is never trained again.
    """
    rng = random.Random(save_every)
    consumed_before: set[str] = set()
    for seed in range(kills):
        saved = FORK.Event()
        trainer = FORK.Process(target=train_until_killed, args=(tmp_path, seed, save_every, saved))
        trainer.start()
        if seed % 2:  # every other life gets somewhere; the rest may end before or during recovery
            assert saved.wait(120)
        time.sleep(rng.uniform(0.0, 0.1))
        trainer.kill()
        trainer.join()
        assert trainer.exitcode == -9
        weights = load(tmp_path)
        with TrajectoryStore.open(tmp_path / "store.sqlite") as store:
            assert store.damage() == []
            before = store.counts()
            assert before.holds_law()
            store.recover(step=weights["step"], version=weights["step"])
            after = store.counts()
            assert after.holds_law()
            assert after.issued == before.issued
            assert (after.not_started, after.running, after.training) == (0, 0, 0)
            assert len(weights["trained"]) == len(set(weights["trained"])), "trained twice in one lineage"
            consumed = {row.id for row in store.summaries(State.CONSUMED)}
            assert consumed == set(weights["trained"])
            assert consumed_before <= consumed, "an id in a checkpoint was lost again"
            consumed_before = consumed
            for row in store.summaries():
                assert [change.state for change in store.history(row.id)].count(State.CONSUMED) <= 1
            assert all(trajectory.num_sampled >= 1 for trajectory in store.trajectories()), "every record is whole"
    assert len(consumed_before) >= kills // 2, "the kills came before any work was done"

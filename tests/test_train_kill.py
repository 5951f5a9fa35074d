"""A training run that is killed outright and resumed, again and again: nothing lost, trained twice or left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
import training_runs as runs
from garbage import mounts_naming

from glmgym.events import CheckpointSaved, Event, ParityChecked, StepFinished
from glmgym.store import State, TrajectoryStore
from glmgym.verify import verify_run
from glmgym_trainers import checkpoint
from glmgym_trainers.recipe import load_recipe
from glmgym_trainers.run import train
from glmgym_trainers.runlog import read_rows

KILLS = 20 if os.environ.get("GLMGYM_SOAK") else 3
BATCH_SIZE = 8  # of training_runs.SMALL
LAST_KILL_S = 14.0  # imports take some seconds of it


@pytest.mark.slow
@pytest.mark.bubblewrap
def test_killed_at_random_moments_and_resumed(tmp_path: Path, bubblewrap_works: None) -> None:
    """S4, S1, X5: each id is trained at most once over all lives, the law holds in each, the boxes end with the run."""
    out, rng = tmp_path / "run", random.Random(7)
    endless = (*runs.SMALL, "trainer.steps=100000")
    consumed: dict[str, int | None] = {}
    for life in range(KILLS):
        process = runs.start(out, resume=(out / "config.toml").exists(), settings=endless)
        moment = rng.uniform(0.5, LAST_KILL_S)
        try:
            output = process.communicate(timeout=moment)[0]
        except subprocess.TimeoutExpired:
            runs.kill(process)
        else:
            pytest.fail(f"life {life} ended by itself:\n{output}")
        runs.wait_until_gone(out)
        assert mounts_naming(str(out), f"/{process.pid}-") == []
        consumed = _check_store(out, consumed)
        print(f"life {life}: killed after {moment:.1f} s, {len(consumed)} trajectories consumed")
    latest = checkpoint.latest(out)
    steps = latest.step + 1 if latest else 3
    last = runs.start(out, resume=(out / "config.toml").exists(), settings=(*runs.SMALL, f"trainer.steps={steps}"))
    output = last.communicate(timeout=300)[0]
    assert last.returncode == 0, output
    runs.wait_until_gone(out)
    assert len(_check_store(out, consumed)) == BATCH_SIZE * (steps + 1)  # one batch more warmed the critic up
    assert not verify_run(out).problems
    _check_numbers(out)


@pytest.mark.slow
@pytest.mark.bubblewrap
def test_killed_between_any_two_parts_of_an_update(tmp_path: Path, bubblewrap_works: None) -> None:
    """Take, learn, save, consume: only a batch whose checkpoint appeared counts as trained, and then once."""
    out = tmp_path / "run"
    lives = multiprocessing.get_context("forkserver")
    lives.set_forkserver_preload(["glmgym_trainers.run"])
    marked: dict[str, list[str]] = {}
    for moment, state, step, saved in (
        ("taken", State.TRAINING, None, None),
        ("learned", State.TRAINING, 1, None),
        ("saved", State.TRAINING, 1, 1),
        ("consumed", State.CONSUMED, 2, 2),
    ):
        life = lives.Process(target=_die, args=(out, moment))
        life.start()
        life.join(300)
        assert life.exitcode == -signal.SIGKILL, moment
        runs.wait_until_gone(out)
        latest = checkpoint.latest(out)
        assert (latest and latest.step) == saved, moment
        with TrajectoryStore.open(out / "trajectories" / "store.sqlite", read_only=True) as store:
            assert store.counts().holds_law()
            rows = store.summaries()
        marked[moment] = [row.id for row in rows if row.state is state and row.step == step]
        assert len(marked[moment]) == BATCH_SIZE, moment
    trained = {(row.step, row.id) for row in rows if row.state is State.CONSUMED}
    assert trained == {(1, id) for id in marked["saved"]} | {(2, id) for id in marked["consumed"]}
    _check_numbers(out)


def _die(out: Path, moment: str) -> None:
    """Train in ``out`` until ``moment`` and no further."""

    def die(*_: object, **__: object) -> Path:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def on_event(event: Event) -> None:
        if isinstance(event, events.get(moment, ())):
            die()

    events = {"taken": ParityChecked, "saved": CheckpointSaved, "consumed": StepFinished}
    if moment == "learned":  # no event tells; the next thing to happen is this call
        checkpoint.save = die
    settings = dict(setting.split("=") for setting in runs.SMALL)
    recipe = load_recipe("quickstart", {key: int(value) for key, value in settings.items()})
    asyncio.run(train(recipe, out, resume=(out / "config.toml").exists(), on_event=on_event))


def _check_numbers(out: Path) -> None:
    """What the learner counted in the loss of a step is what the store says of the step's trajectories."""
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite", read_only=True) as store:
        consumed = store.summaries(State.CONSUMED)
    for row in read_rows(out / "metrics.jsonl"):
        if "dis/sampled" in row:
            assert row["dis/sampled"] == sum(one.num_sampled for one in consumed if one.step == row["step"])


def _check_store(out: Path, consumed_before: dict[str, int | None]) -> dict[str, int | None]:
    """The law holds, and what was consumed stays consumed by the same step. Returns the step by consumed id."""
    path = out / "trajectories" / "store.sqlite"
    if not path.exists():
        return consumed_before  # killed before the store was made
    with TrajectoryStore.open(path, read_only=True) as store:
        counts = store.counts()
        assert counts.holds_law(), counts
        consumed = {row.id: row.step for row in store.summaries(State.CONSUMED)}
    assert consumed_before.items() <= consumed.items()
    assert all(list(consumed.values()).count(step) == BATCH_SIZE for step in set(consumed.values()))
    return consumed

"""A training run that is killed outright and resumed, again and again: nothing lost, trained twice or left behind."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
import training_runs as runs

from glmgym.store import State, TrajectoryStore
from glmgym.verify import verify_run
from glmgym_trainers import checkpoint

KILLS = 20 if os.environ.get("GLMGYM_SOAK") else 3
BATCH_SIZE = 8  # of training_runs.SMALL
LAST_KILL_S = 14.0  # imports take some seconds of it
GONE_WITHIN_S = 10.0


@pytest.mark.slow
@pytest.mark.bubblewrap
def test_killed_at_random_moments_and_resumed(tmp_path: Path, bubblewrap_works: None) -> None:
    """S4, S1, X5: each id is trained at most once over all lives, the law holds in each, the boxes end with the run."""
    out, rng = tmp_path / "run", random.Random(7)
    before = runs.mounts(out)
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
        _wait_until_gone(out)
        assert runs.mounts(out) == before
        consumed = _check_store(out, consumed)
        print(f"life {life}: killed after {moment:.1f} s, {len(consumed)} trajectories consumed")
    latest = checkpoint.latest(out)
    steps = latest.step + 1 if latest else 3
    last = runs.start(out, resume=(out / "config.toml").exists(), settings=(*runs.SMALL, f"trainer.steps={steps}"))
    output = last.communicate(timeout=300)[0]
    assert last.returncode == 0, output
    _wait_until_gone(out)
    assert len(_check_store(out, consumed)) == BATCH_SIZE * (steps + 1)  # one batch more warmed the critic up
    assert not verify_run(out).problems


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


def _wait_until_gone(out: Path) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := runs.left_over(out):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)

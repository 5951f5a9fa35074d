"""The training run, whole and short: the shipped policy, real boxes, real updates, and what can go wrong."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_runs as runs

from glmgym import Opening, Reward, ScoreView, Task, ToolEnv, procedural, register
from glmgym.errors import ConfigError, GlmgymError, StoreError
from glmgym.events import EvaluationFinished, Event, ParityChecked, RunStarted, StepFinished
from glmgym.fleet import RolloutStalled
from glmgym.sandbox import Sandbox
from glmgym.store import State, TrajectoryStore
from glmgym.verify import verify_run
from glmgym_trainers import checkpoint
from glmgym_trainers.actor import ParityError
from glmgym_trainers.policy import load_policy, resolve
from glmgym_trainers.recipe import Recipe, load_recipe
from glmgym_trainers.run import train
from glmgym_trainers.runlog import read_rows

pytestmark = pytest.mark.bubblewrap
OVERRIDES: dict[str, Any] = {
    "trainer.steps": 2,
    "trainer.batch_size": 8,
    "algorithm.value_warmup": 1,
    "fleet.max_live": 8,
    "sandbox.warm": 1,
    "eval.episodes": 6,
}


def _recipe(**changes: Any) -> Recipe:
    return load_recipe("quickstart", {**OVERRIDES, **{key.replace("__", "."): value for key, value in changes.items()}})


def test_a_short_run_writes_everything_a_reader_needs(tmp_path: Path, bubblewrap_works: None) -> None:
    events: list[Event] = []
    asyncio.run(train(_recipe(), tmp_path / "run", resume=False, on_event=events.append))
    kinds = [type(event) for event in events]
    assert kinds[0] is RunStarted
    assert [e.label for e in events if isinstance(e, EvaluationFinished)] == ["before", "after"]
    assert kinds.index(ParityChecked) < kinds.index(StepFinished)
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [event.step for event in steps] == [1, 2, 3]
    assert "policy/trusted_fraction" not in steps[0].metrics  # the critic alone learns
    assert 0.9 < steps[1].metrics["policy/trusted_fraction"] <= 1.0
    assert {"batch/success", "batch/staleness", "rollout/episodes_per_s"} <= set(steps[2].metrics)
    run = tmp_path / "run"
    for name in ("config.toml", "metrics.jsonl", "learning_curve.png", "checkpoints/step-000003/policy/config.json"):
        assert (run / name).stat().st_size > 0, name
    assert list((run / "tensorboard").glob("events*"))
    assert [row["event"] for row in read_rows(run / "metrics.jsonl")].count("step") == 3
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite", read_only=True) as store:
        counts = store.counts()
        assert counts.holds_law()
        assert counts.consumed == 24
        for row in store.summaries(State.CONSUMED):
            assert row.num_trained == row.num_sampled
            assert row.consumed_version is not None
            assert row.consumed_version - 1 - row.oldest_version <= 1
    assert not verify_run(run).problems
    trained = load_policy(run / "checkpoints" / "step-000003" / "policy").model.state_dict()
    start = load_policy("quickstart").model.state_dict()
    assert any(not tensor.equal(start[name]) for name, tensor in trained.items())
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        asyncio.run(train(_recipe(), run, resume=False))
    with pytest.raises(ConfigError, match=r"another recipe: trainer\.lr was 0\.0004, now 0\.1"):
        asyncio.run(train(_recipe(trainer__lr=0.1), run, resume=True))
    asyncio.run(train(_recipe(trainer__steps=3, eval__episodes=6), run, resume=True))  # further than asked at first
    assert checkpoint.latest(run).step == 4  # type: ignore[union-attr]


def test_a_group_algorithm_trains_on_whole_groups(tmp_path: Path, bubblewrap_works: None) -> None:
    changes = {**OVERRIDES, "eval.episodes": 0, "algorithm": {"name": "dis", "group_size": 4}}
    del changes["algorithm.value_warmup"]
    recipe = load_recipe("quickstart", changes)
    asyncio.run(train(recipe, tmp_path / "run", resume=False))
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        groups = [row.group_id or row.id for row in store.summaries(State.CONSUMED)]  # the first names its group
    assert len(groups) == 16
    assert all(groups.count(group) == 4 for group in groups)


def test_an_interrupt_stops_cleanly_and_resume_finishes(tmp_path: Path, bubblewrap_works: None) -> None:
    out = tmp_path / "run"
    process = runs.start(out, settings=(*runs.SMALL, "trainer.steps=100000"))
    deadline = time.monotonic() + 300
    while checkpoint.latest(out) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everything in the foreground
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    assert "run the same command with --resume to go on" in output
    assert "Traceback" not in output
    step = checkpoint.latest(out).step  # type: ignore[union-attr]
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite", read_only=True) as store:
        counts = store.counts()
        assert counts.holds_law()
        assert counts.running == counts.not_started == 0
        assert not [row.failure for row in store.summaries() if row.failure]  # no box died of the interrupt
    again = subprocess.run(
        runs.command(out, resume=True, settings=(*runs.SMALL, f"trainer.steps={step}")),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert checkpoint.latest(out).step == step + 1  # type: ignore[union-attr]
    runs.wait_until_gone(out)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two checkpoints and no third."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a full disk needs a mount, and that needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "small", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_keeps_what_was_saved_and_says_what_to_do(small_disk: Path, bubblewrap_works: None) -> None:
    """The disk fills up at a checkpoint: the sentence names it, earlier ones are intact, resume goes on."""
    run = small_disk / "run"
    recipe = _recipe(eval__episodes=0, trainer__steps=3)
    with pytest.raises(GlmgymError, match=r"step-00000\d cannot be written: .* --resume"):
        asyncio.run(train(recipe, run, resume=False))
    saved = checkpoint.latest(run)
    assert saved is not None
    assert load_policy(saved.policy_dir).files
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    asyncio.run(train(recipe, run, resume=True))
    assert checkpoint.latest(run).step == 4  # type: ignore[union-attr]
    assert not verify_run(run).problems


def test_mistakes_stop_the_run_with_a_sentence(tmp_path: Path, bubblewrap_works: None) -> None:
    with pytest.raises(ConfigError, match="no checkpoint at 'nowhere'"):
        asyncio.run(train(_recipe(policy__init="nowhere"), tmp_path / "a", resume=False))
    with pytest.raises(ConfigError, match="context_length"):
        asyncio.run(train(_recipe(policy__context_length=9999), tmp_path / "a", resume=False))
    assert not (tmp_path / "a").exists()  # so that the corrected command starts
    with pytest.raises(ConfigError, match=r"did you mean 'terminal-basics-v0'\?"):
        asyncio.run(train(_recipe(env__id="terminal-basic-v0"), tmp_path / "b", resume=False))
    with pytest.raises(ConfigError, match="holds no run to resume"):
        asyncio.run(train(_recipe(), tmp_path / "c", resume=True))
    (tmp_path / "d" / "trajectories").mkdir(parents=True)
    (tmp_path / "d" / "trajectories" / "store.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"store\.sqlite"):
        asyncio.run(train(_recipe(), tmp_path / "d", resume=False))


@pytest.mark.parametrize("kept", [0, 4, 1000, -30])
def test_a_torn_checkpoint_is_named(tmp_path: Path, kept: int) -> None:
    """Both its files, cut off anywhere: empty, in the first word, in the middle, near the end."""
    shutil.copytree(resolve("quickstart"), tmp_path / "policy")
    torch.save({"step_count": 7, "tensor": torch.zeros(1000)}, tmp_path / "trainer.pt")
    found = checkpoint.Checkpoint(7, tmp_path)
    assert found.state()["step_count"] == 7
    for file in (tmp_path / "trainer.pt", tmp_path / "policy" / "model.safetensors"):
        file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(GlmgymError, match=r"trainer\.pt cannot be read .*; remove .* --resume"):
        found.state()
    with pytest.raises(ConfigError, match=r"policy cannot be loaded: "):
        load_policy(found.policy_dir)


def test_an_environment_that_always_fails_ends_the_run_and_keeps_the_records(
    tmp_path: Path, bubblewrap_works: None
) -> None:
    """Prompts longer than the context: every reset is an environment failure, none a reward of 0.

    Ended by their number: by the clock, a slow machine may have opened no box yet.
    """
    with pytest.raises(RolloutStalled, match="the opening prompt has"):
        asyncio.run(
            train(
                _recipe(policy__context_length=40, eval__episodes=0, fleet__max_failures=8),
                tmp_path / "run",
                resume=False,
            )
        )
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        failed = [row for row in store.summaries(State.DISCARDED) if row.failure]
    assert failed
    assert all(row.reward is None and row.failure.startswith("env:") for row in failed)


class Broken(ToolEnv):
    """Cannot grade every second task; asked to, it cannot even begin. Needs no box."""

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        if task.data["gone"]:
            raise RuntimeError("its fixture is gone")
        return await super().reset(task, box)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        if view.task.data["number"] % 2:
            raise ValueError("an odd number")
        return (Reward("even", 1.0),)


def _register(name: str, *, gone: bool) -> None:
    def make(rng: random.Random) -> Task:
        return Task(instruction="Say done.", data={"number": rng.randrange(1000), "gone": gone})

    register(name, Broken, tasks=procedural(make, train=1000, heldout=10, name=name))


def test_failures_are_kept_and_never_trained(tmp_path: Path) -> None:
    """Half the attempts fail in the scorer; the updates are made of the other half."""
    _register("half-broken-v0", gone=False)
    changes = {"env__id": "half-broken-v0", "eval__episodes": 0, "rollout__max_sampled_tokens": 8}
    asyncio.run(train(_recipe(**changes), tmp_path / "run", resume=False))
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        rows = store.summaries()
    failed = [row for row in rows if row.failure]
    assert len(failed) > 5
    assert all("an odd number" in row.failure and row.reward is None and row.state is State.DISCARDED for row in failed)
    consumed = [row for row in rows if row.state is State.CONSUMED]
    assert [row.reward for row in consumed] == [1.0] * 24
    steps = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["event"] == "step"]
    assert sum(row["rollout/failures"] for row in steps) > 5


def test_an_environment_that_always_raises_ends_the_run(tmp_path: Path) -> None:
    """Long before ``stall_s``, whatever this machine's speed: so many failures in a row say enough."""
    _register("broken-v0", gone=True)
    recipe = _recipe(env__id="broken-v0", eval__episodes=0, fleet__max_failures=40)
    with pytest.raises(RolloutStalled, match=r"attempts failed in a row; .*its fixture is gone"):
        asyncio.run(train(recipe, tmp_path / "run", resume=False))
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        assert store.counts().holds_law()
        assert store.counts().running == 0
        assert any("RuntimeError: its fixture is gone" in row.failure for row in store.summaries(State.DISCARDED))


OWN = """
from glmgym import Reward, Task, ToolEnv, procedural, register

class Env(ToolEnv):
    async def score(self, view):
        return (Reward("answered", 1.0),)

def make(rng):
    return Task(instruction=f"Say {rng.random()}.")

register("own-v0", Env, tasks=procedural(make, train=1000, heldout=10, name="own-v0"))
"""


def test_an_own_environment_by_path_and_a_disagreement_that_stops_the_run(tmp_path: Path) -> None:
    """A user's file needs no installation. Two float32 forwards of different shapes never agree to 1e-12 nats."""
    (tmp_path / "env.py").write_text(OWN)
    changes = {"env__id": str(tmp_path), "eval__episodes": 0, "rollout__max_sampled_tokens": 8}
    disagreement = r"at most 1e-12 is allowed; the worst:\n  t\d+ token \d+ \(id \d+\): rollout"
    with pytest.raises(ParityError, match=disagreement):
        asyncio.run(train(_recipe(**changes, trainer__max_mismatch=1e-12), tmp_path / "strict", resume=False))
    assert checkpoint.latest(tmp_path / "strict") is None
    with TrajectoryStore.open(tmp_path / "strict" / "trajectories" / "store.sqlite", read_only=True) as store:
        counts, rows = store.counts(), store.summaries()
    assert counts.holds_law()
    assert (counts.consumed, counts.training) == (0, 8)  # taken, and given back by a resume: no step was noted
    assert {row.step for row in rows} == {None}
    asyncio.run(train(_recipe(**changes), tmp_path / "run", resume=False))
    with TrajectoryStore.open(tmp_path / "run" / "trajectories" / "store.sqlite", read_only=True) as store:
        assert [row.env_id for row in store.summaries(State.CONSUMED)] == ["own-v0"] * 24

"""Compaction with a real model: keys after a cut, a training run with its credit on disk, and an evaluation alike."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tiny_glm import tiny_glm
from tiny_glm import trajectory as pictured
from typer.testing import CliRunner

from glmgym.cli.app import app
from glmgym.cli.evaluating import Terms, read_terms
from glmgym.compaction import CompactionSettings
from glmgym.errors import ConfigError
from glmgym.registry import find_environment
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.store import State, TrajectoryStore, read_credit
from glmgym.trajectory import SegmentEnd, SpanKind
from glmgym_trainers.algorithms.compaction import CompactionRl, CompactionRlSettings
from glmgym_trainers.engines import open_engine
from glmgym_trainers.learner import Learner
from glmgym_trainers.recipe import dump_recipe, load_recipe, parse_recipe
from glmgym_trainers.run import train
from glmgym_trainers.settings import TrainerSettings

WORDY = '''
"""Every reply is answered with a few words; after eight of them the episode is over."""

from glmgym import Reward, ToolEnv, procedural, register
from glmgym.env import Step, Task
from glmgym.messages import user


class Wordy(ToolEnv):
    turns = 0

    async def step(self, reply):
        self.turns += 1
        return Step((user("file line " * 4),), terminated=self.turns == 8)

    async def score(self, view):
        return (Reward("length", float(len(view.answer) % 2)),)


def make(rng):
    return Task(instruction=f"Count to {rng.randrange(10**6)}.")


register("wordy-v0", Wordy, tasks=procedural(make, train=100, heldout=20, name="wordy"))
'''
RECIPE = """
[env]
id = "{env}"
[policy]
context_length = 128
[rollout]
max_turn_tokens = 8
[compaction]
reserve_tokens = 48
keep_pairs = 1
max_compactions = 2
max_summary_tokens = 12
request = "Sum up."
[trainer]
steps = 2
batch_size = 4
[fleet]
max_live = 4
[algorithm]
name = "sao"
value_warmup = 0
[eval]
episodes = 0
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe beside the environment it trains on."""
    directory = tmp_path_factory.mktemp("wordy")
    (directory / "env.py").write_text(WORDY)
    path = directory / "wordy.toml"
    path.write_text(RECIPE.format(env=directory / "env.py"))
    return path


async def test_the_engine_s_log_probs_after_a_cut_are_those_of_the_new_context(recipe: Path) -> None:
    """Keys of what was cut are not seen again, those of the shared beginning are; nothing needs to be released."""
    engine, chat = open_engine("quickstart", context_length=128)
    spec = find_environment(str(recipe.parent / "env.py"))
    settings = CompactionSettings(
        reserve_tokens=48, keep_pairs=1, max_compactions=2, max_summary_tokens=12, request="Sum up."
    )
    house = House(engine, chat, None, Budget(max_turn_tokens=8), compaction=settings)
    try:
        trajectory = await run_trajectory(Job("t1", spec.tasks.task("train", 0), spec, seed=3), house)
        assert [segment.ended_by for segment in trajectory.segments][:2] == [SegmentEnd.COMPACTED] * 2
        for segment in trajectory.segments:
            again = await engine.score(segment.token_ids.tolist())
            at = np.flatnonzero(segment.sampled_mask)
            assert segment.logprobs[at] == pytest.approx(again[at - 1], abs=1e-4)
    finally:
        await engine.close()


def test_a_step_reports_the_advantages_of_sampled_tokens_and_which_were_left_out() -> None:
    """Segments of 2 actions and 2 summary tokens, and of 1 action: the summary is masked, or trains with the rest."""
    made = pictured("t1", ["ppaaoss", "pcca"], 1.0)
    for train_summary in (True, False):
        algorithm = CompactionRl(CompactionRlSettings(train_summary=train_summary, value_warmup=0))
        report = Learner(tiny_glm(), algorithm, TrainerSettings()).step([made])
        first, second = report.advantages["t1", 0], report.advantages["t1", 1]
        assert np.isnan(first).tolist() == [False, False, not train_summary, not train_summary]
        assert np.isnan(second).tolist() == [False]
        assert second[0] != 0.0
        assert report.trained == {"t1": 5 if train_summary else 3}


@pytest.fixture(scope="module")
def run(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates."""
    out = tmp_path_factory.mktemp("run") / "out"
    asyncio.run(train(load_recipe(recipe), out, resume=False))
    return out


def test_a_run_trains_every_sampled_token_and_keeps_its_credit(run: Path) -> None:
    """T7 over compactions: in each segment as many advantages as sampled tokens; ``verify`` finds nothing."""
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite", read_only=True) as store:
        rows = store.summaries(State.CONSUMED)
        trajectories = [store.get(row.id) for row in rows]
    assert {row.step for row in rows} == {1, 2}
    updates = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [update for update in updates if update["event"] == "step"]
    assert all(0 < update["rollout/compactions"] <= 2 and update["rollout/context_tokens"] <= 128 for update in updates)
    assert sum(len(t.segments) > 1 for t in trajectories) > 0
    for row, trajectory in zip(rows, trajectories, strict=True):
        assert row.num_trained == row.num_sampled
        credit = read_credit(run / "trajectories", row.id, row.step)
        assert {i: len(values) for i, values in credit.items()} == {
            i: segment.num_sampled for i, segment in enumerate(trajectory.segments)
        }
        assert all(np.isfinite(values).all() for values in credit.values())
    verified = CliRunner().invoke(app, ["verify", str(run)])
    assert verified.exit_code == 0, verified.output


def test_inspect_shows_the_summary_and_the_advantages(run: Path) -> None:
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite", read_only=True) as store:
        row = next(row for row in store.summaries(State.CONSUMED) if len(store.get(row.id).segments) == 3)
    shown = CliRunner().invoke(app, ["inspect", str(run), row.id])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())  # however it was folded
    assert "carried over" in text
    assert "▌summary" in text
    assert "advantage mean" in text
    assert f"trained: {row.num_sampled} of {row.num_sampled} sampled tokens, in update {row.step}" in text
    table = CliRunner().invoke(app, ["inspect", str(run), row.id, "--tokens"])
    assert "advantage" in table.output


def test_an_evaluation_like_a_run_compacts_as_the_run_did(run: Path, recipe: Path, tmp_path: Path) -> None:
    suite = str(recipe.parent / "env.py")
    policy = max((run / "checkpoints").glob("step-*")) / "policy"
    command = ["eval", "--policy", str(policy), "--suite", suite, "--tasks", "3"]
    like = CliRunner().invoke(app, [*command, "--like", str(run), "--out", str(tmp_path / "like")])
    assert like.exit_code == 0, like.output
    assert "trained with compaction" not in like.output
    summary = json.loads((tmp_path / "like" / "summary.json").read_text())
    assert summary["compaction"]["reserve_tokens"] == 48
    assert summary["context_length"] == 128
    with TrajectoryStore.open(tmp_path / "like" / "trajectories" / "store.sqlite", read_only=True) as store:
        kinds = [span.kind for t in store.trajectories() for segment in t.segments for span in segment.spans]
    assert SpanKind.SUMMARY in kinds
    plain = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "plain")])
    assert plain.exit_code == 0, plain.output
    assert f"trained with compaction and evaluated without; alike: --like {run.resolve()}" in plain.output
    assert json.loads((tmp_path / "plain" / "summary.json").read_text())["compaction"] is None


def test_the_terms_of_an_evaluation_are_those_of_the_recipe(recipe: Path, tmp_path: Path) -> None:
    settings = load_recipe(recipe)
    assert settings.compaction is not None
    assert read_terms(recipe) == Terms(settings.rollout, settings.sampling, settings.compaction, 128)
    (tmp_path / "empty.toml").write_text("")
    assert read_terms(tmp_path / "empty.toml") == Terms()
    for name, text, message in [
        ("a", "x = ", "not valid TOML"),
        ("b", "[[stage]]\nname = 'x'", "a recipe of stages"),
        ("c", "rollout = 3", "rollout = 3: must be a table"),
        ("d", "[compaction]\nkeep_pair = 3", "did you mean 'keep_pairs'"),
        ("e", None, "No such file"),
    ]:
        if text is not None:
            (tmp_path / f"{name}.toml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_terms(tmp_path / f"{name}.toml")


def test_a_recipe_with_and_without_compaction_reads_back_the_same(recipe: Path) -> None:
    settings = load_recipe(recipe)
    assert parse_recipe(dump_recipe(settings), where="again") == settings
    plain = load_recipe("quickstart")
    assert plain.compaction is None
    assert parse_recipe(dump_recipe(plain), where="again") == plain
    with pytest.raises(ConfigError, match="did you mean 'keep_pairs'"):
        load_recipe(recipe, {"compaction.keep_pair": 1})


def test_a_reserve_that_cannot_work_leaves_no_run_behind(recipe: Path, tmp_path: Path) -> None:
    settings = load_recipe(recipe, {"compaction.reserve_tokens": 12})
    with pytest.raises(ConfigError, match=r"reserve_tokens = 12: must hold the request \(\d+ tokens\) and a summary"):
        asyncio.run(train(settings, tmp_path / "run", resume=False))
    assert not (tmp_path / "run").exists()

"""Imitation: the oracle plays real episodes, its tokens alone are learned, and a broken oracle is never imitated."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_glm import tiny_glm, trajectory

from glmgym import Reward, ScoreView, Step, Task, ToolEnv, assistant, procedural, register
from glmgym.engine import Finish, GenerateParams, Weights
from glmgym.engines import ScriptedEngine
from glmgym.errors import ConfigError, EnvFailure
from glmgym.fleet import RolloutStalled
from glmgym.messages import Message
from glmgym.registry import environment
from glmgym.rewards import RewardMix
from glmgym.rollout import Budget, House, Job
from glmgym.store import State, TrajectoryStore
from glmgym.trajectory import SpanKind, Stop
from glmgym.verify import verify_run
from glmgym_trainers import checkpoint
from glmgym_trainers.algorithms import Extra, Imitation, ImitationSettings
from glmgym_trainers.batch import Row, collate, rows_of
from glmgym_trainers.imitation import Demonstrator, demonstrate
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import load_policy
from glmgym_trainers.recipe import Recipe, load_recipe
from glmgym_trainers.reductions import weigh
from glmgym_trainers.run import train
from glmgym_trainers.runlog import read_rows
from glmgym_trainers.settings import TrainerSettings


class Echo(ToolEnv):
    """Two turns: say the word, be asked again, say it again."""

    async def reset(self, task: Task, box: Any) -> Any:
        self.task, self.said = task, 0
        return await super().reset(task, box)

    async def step(self, reply: Message) -> Step:
        self.said += 1
        asked = (Message("user", "Again."),) if self.said == 1 else ()
        return Step(asked, terminated=self.said == 2)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        said = [message.content.strip() for message in view.messages if message.role == "assistant"]
        return (Reward("said", float(said == [view.task.data["word"]] * 2)),)


def _make(rng: random.Random) -> Task:
    word = rng.choice(("red", "blue", "green"))
    return Task(instruction=f"Say {word} {rng.randrange(10**6)}.", data={"word": word}, family="echo")


def _register(name: str, oracle: Any) -> None:
    register(name, Echo, tasks=procedural(_make, train=1000, heldout=10, name=name), oracle=oracle)


_register("echo-v0", lambda task: [assistant(task.data["word"])] * 2)
_register("echo-mute-v0", None)
_register("echo-wrong-v0", lambda task: [assistant("mauve")] * 2)
_register("echo-short-v0", lambda task: [assistant(task.data["word"])])


def _recipe(env: str = "echo-v0", **changes: Any) -> Recipe:
    settings = {
        "env.id": env,
        "algorithm": {"name": "imitation"},
        "trainer.steps": 3,
        "trainer.batch_size": 8,
        "fleet.max_live": 8,
        "eval.episodes": 4,
    }
    return load_recipe("quickstart", settings | {key.replace("__", "."): value for key, value in changes.items()})


def _house(**changes: Any) -> House:
    policy = load_policy("quickstart")
    return House(ScriptedEngine([], context_length=400, version=7), policy.chat, None, Budget(max_turns=4), **changes)


def _job(env: str) -> Job:
    spec = environment(env)
    return Job("t1", spec.tasks.task("train", 0), spec, seed=0)


async def test_a_demonstration_is_an_episode_of_the_oracles_own_tokens() -> None:
    """Encoded as a rollout is: opening, turn, delta, turn; sampled spans are what the chat says the turns are."""
    house, job = _house(), _job("echo-v0")
    played = await demonstrate(job, house)
    assert (played.outcome.stop, played.outcome.total()) == (Stop.DONE, 1.0)
    spans = played.segments[0].spans
    assert [span.kind for span in spans] == [SpanKind.PROMPT, SpanKind.ACTION, SpanKind.OBSERVATION, SpanKind.ACTION]
    turn = house.chat.turn(assistant(job.task.data["word"]))
    for said in (spans[1], spans[3]):
        assert said.token_ids.tolist() == turn
        assert said.logprobs is not None
        assert said.versions is not None
        assert said.logprobs.tolist() == [0.0] * len(turn)  # certain
        assert set(said.versions.tolist()) == {7}  # the policy's, so that it is as fresh as the policy's own
    assert spans[2].token_ids.tolist() == house.chat.delta([Message("user", "Again.")], last_id=turn[-1])
    assert played.provenance.engine == "oracle"


async def test_the_run_s_own_rewards_do_not_grade_the_oracle() -> None:
    """A style component that the oracle would fail says nothing about whether the task was solved."""
    mix = RewardMix(weights={"said": 0.5})
    assert (await demonstrate(_job("echo-v0"), replace(_house(), rewards=mix))).outcome.total() == 1.0


@pytest.mark.parametrize(
    ("env", "budget", "reason"),
    [
        ("echo-wrong-v0", {}, "scored 0 on .* and stopped as done"),
        ("echo-short-v0", {}, "the oracle has no more turns, yet the episode goes on"),
        ("echo-v0", {"max_turn_tokens": 1}, "scored 0 on .* and stopped as"),
        ("echo-v0", {"max_turns": 1}, "scored 0 on .* stopped as max_turns"),
    ],
)
async def test_an_oracle_that_does_not_solve_its_task_is_a_failure(env: str, budget: Any, reason: str) -> None:
    house = replace(_house(), budget=Budget(**{"max_turns": 4, **budget}))
    played = await demonstrate(_job(env), house)
    assert played.outcome.stop is Stop.FAILED
    assert played.outcome.failure is not None
    assert played.outcome.failure.origin == "env"
    with pytest.raises(EnvFailure, match=reason):
        raise EnvFailure(played.outcome.failure.message)


async def test_the_demonstrator_is_cut_where_an_engine_would_be() -> None:
    policy = ScriptedEngine([], context_length=50, version=3)
    engine = Demonstrator([[1, 2, 3], [4, 5]], policy)
    whole = await engine.generate([9], GenerateParams(3), session="s")
    assert (whole.token_ids.tolist(), whole.finish) == ([1, 2, 3], Finish.STOP)
    await policy.switch(Weights(4))
    cut = await engine.generate([9], GenerateParams(1), session="s")
    assert (cut.token_ids.tolist(), cut.finish, cut.versions.tolist()) == ([4], Finish.LENGTH, [4])
    with pytest.raises(EnvFailure, match="no more turns"):
        await engine.generate([9], GenerateParams(1), session="s")


def test_the_loss_is_the_mean_cross_entropy_of_what_was_said() -> None:
    """Against full logits; the metric is the same number. Prompts and observations have no part in it."""
    algorithm = Imitation(ImitationSettings())
    batch = [trajectory("a", ["ppaaoaa"], seed=1), trajectory("b", ["paa"], seed=2)]
    credits = [credit for each in batch for credit in algorithm.credit([each], Extra())]
    rows = weigh(rows_of(batch, credits), algorithm.reduction)
    model = tiny_glm()
    expected = []
    for row in rows:
        ids = torch.tensor(row.token_ids, dtype=torch.int64)
        full = model(ids[None]).logits[0].log_softmax(-1)
        expected += [-full[p - 1, ids[p]].item() for p in np.flatnonzero(row.trained_mask)]
    assert len(expected) == 6
    learner = Learner(model, algorithm, TrainerSettings(lr=1e-2))
    report = learner.step(batch)
    assert report.metrics["policy/loss"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert report.metrics["imitation/cross_entropy"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert report.metrics["policy/trusted_fraction"] == 1.0
    for _ in range(20):
        report = learner.step(batch)
    assert report.metrics["policy/loss"] < 0.5 * np.mean(expected)


def test_recorded_log_probs_play_no_part() -> None:
    """A demonstrator's certainty is no probability to compare with: the loss is the same whatever was recorded."""
    batch = [trajectory("a", ["ppaaoaa"], seed=1)]
    losses = []
    for shift in (0.0, 5.0):
        row = Row.of(batch[0], 0)
        (row,) = weigh([replace(row, rollout_logprobs=row.rollout_logprobs - shift)], "token_mean")
        learner = Learner(tiny_glm(), Imitation(ImitationSettings()), TrainerSettings())
        columns = collate([row])
        losses.append(learner.algorithm.loss(learner._forward(columns), columns).loss.item())
    assert losses[0] == losses[1]


def test_a_run_imitates_evaluates_and_resumes(tmp_path: Path) -> None:
    """The same run directory as any other; the policy says the words more often than before; going further works."""
    run = tmp_path / "run"
    asyncio.run(train(_recipe(trainer__lr=3e-3, trainer__steps=20, trainer__batch_size=16), run, resume=False))
    rows = read_rows(run / "metrics.jsonl")
    entropies = [row["imitation/cross_entropy"] for row in rows if row["event"] == "step"]
    assert len(entropies) == 20
    assert entropies[-1] < 0.1 * entropies[0]
    before, after = (row["overall"]["mean"] for row in rows if row["event"] == "evaluation")
    assert before == 0.0  # the policy never said such a word before
    assert after >= 0.75
    assert not [row for row in rows if row["event"] == "parity"]  # the oracle's log-probs are not the policy's
    with TrajectoryStore.open(run / "trajectories" / "store.sqlite", read_only=True) as store:
        assert store.counts().holds_law()
        consumed = store.summaries(State.CONSUMED)
    assert [row.reward for row in consumed] == [1.0] * 320
    assert all(row.num_trained == row.num_sampled for row in consumed)
    assert not verify_run(run).problems
    recipe = _recipe(trainer__lr=3e-3, trainer__steps=21, trainer__batch_size=16)
    assert checkpoint.finished(run, recipe) is None
    asyncio.run(train(recipe, run, resume=True))
    assert checkpoint.finished(run, recipe) == checkpoint.latest(run)


def test_what_cannot_be_imitated_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="echo-mute-v0 has no oracle to imitate; register one"):
        asyncio.run(train(_recipe("echo-mute-v0"), tmp_path / "mute", resume=False))
    assert not (tmp_path / "mute").exists()
    with pytest.raises(RolloutStalled, match="the oracle of echo-wrong-v0 scored 0"):
        asyncio.run(train(_recipe("echo-wrong-v0", fleet__max_failures=20), tmp_path / "wrong", resume=False))

"""Rewards beyond the environment's own: outcome and shaping, rules, anchors, and how they are mixed and graded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import CHAT, DONE, Echo, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.engines import ScriptedEngine
from glmgym.env import ScoreView, Task
from glmgym.errors import ConfigError, GlmgymError, JudgeFailure, ScorerFailure
from glmgym.messages import Message, ToolCall, assistant, system, tool_result, user
from glmgym.rewards import (
    Anchor,
    AnchorSettings,
    Component,
    RewardMix,
    Rule,
    RuleSettings,
    overlap,
    rule,
    transcript,
)
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.sandbox import Sandbox
from glmgym.store.codec import PARTS, decode, encode
from glmgym.trajectory import Failure, Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory
from glmgym_trainers.recipe import Recipe, dump_recipe, parse_recipe
from glmgym_trainers.rewards import open_rewards


async def _no_box() -> Sandbox:
    raise AssertionError("no box is needed")


def view_of(answer: str, data: dict[str, Any] | None = None) -> ScoreView:
    task = Task("k1", "Be kind.", data or {})
    return ScoreView(task, (user("Be kind."), assistant(answer)), None, _no_box)


# The outcome and what only shapes


def test_the_result_leaves_shaping_out_and_the_total_does_not() -> None:
    """0.75 * 1 is the outcome; 0.5 * 0.4 of style and -0.1 * 3 of length come on top: 0.65."""
    rewards = (
        Reward("tests", 1.0, 0.75),
        Reward("style", 0.4, 0.5, shaping=True),
        Reward("length", 3.0, -0.1, shaping=True),
    )
    outcome = Outcome(Stop.DONE, rewards)
    assert outcome.result() == 0.75
    assert outcome.total() == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(Stop.FAILED, failure=Failure("judge", "JudgeFailure", "no verdict")), "has no reward"),
        (Outcome(Stop.DONE), "never graded"),
        (Outcome(Stop.DONE, (Reward("style", 1.0, shaping=True),)), r"every reward .* is shaping \(style\)"),
    ],
)
def test_what_has_no_result_says_why(outcome: Outcome, message: str) -> None:
    with pytest.raises(GlmgymError, match=message):
        outcome.result()


def test_a_record_from_before_shaping_still_reads() -> None:
    segment = Segment((Span(SpanKind.PROMPT, np.array([5])),))
    written = Trajectory("t1", "k", "e-v0", (segment,), Outcome(Stop.DONE, (Reward("r", 0.5, shaping=True),)))
    assert decode("t1", encode(written)).outcome == written.outcome
    record = encode(replace(written, outcome=Outcome(Stop.DONE, (Reward("r", 0.5),))))
    old = replace(record, header=record.header.replace(',"shaping":false', ""))
    assert old.header != record.header
    parts = (old.header.encode(), old.spans, old.token_ids, old.logprobs, old.versions)
    named = zip(PARTS, parts, strict=True)
    digests = b"".join(hashlib.sha256(f"t1/{name}\n".encode() + part).digest() for name, part in named)
    assert decode("t1", replace(old, digests=digests)).outcome.rewards == (Reward("r", 0.5),)


# Rules


async def test_a_rule_gives_its_number_with_its_version() -> None:
    def short(view: ScoreView, most: int = 2) -> bool:
        return len(view.answer.split()) <= most

    async def long(view: ScoreView) -> np.float32:
        return np.float32(len(view.answer))

    given = await rule(short, weight=-0.5, shaping=True)(view_of("two words"))
    assert (given.name, given.value, given.weight, given.source, given.shaping) == ("short", 1.0, -0.5, "rule", True)
    assert (await rule(long, name="chars")(view_of("abc"))) == Reward("chars", 3.0, 1.0, "rule", rule(long).version)
    settings = RuleSettings(name="s", function="here:short", options={"most": 1})
    assert (await Rule(settings, short)(view_of("two words"))).value == 0.0
    assert len({rule(short).version, rule(long).version, Rule(settings, short).version}) == 3
    assert len(given.version) == 16


@pytest.mark.parametrize("value", [None, "0.5", (1.0,), 1j])
async def test_a_rule_that_gives_no_number_cannot_tell(value: object) -> None:
    with pytest.raises(TypeError, match="a reward is a number"):
        await rule(lambda view: value, name="odd")(view_of("x"))


async def test_a_slow_rule_holds_up_nobody() -> None:
    """S6: a rule that blocks, three times at once, does not block the loop, which alone can let it go on."""
    may_end = threading.Event()

    def slow(view: ScoreView) -> bool:
        return may_end.wait(30)

    work = asyncio.gather(*(rule(slow)(view_of("x")) for _ in range(3)))
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not work.done()
    may_end.set()
    assert [reward.value for reward in await work] == [1.0] * 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("polite", "must be 'module:name'"),
        ("no_such_module_here:polite", "No module named 'no_such_module_here'"),
        ("json:detect_encodin", r"json has no function 'detect_encodin'; did you mean 'detect_encoding'\?"),
        ("broken_rewards:polite", r"import broken_rewards: ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_found_is_a_sentence(
    function: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        Rule(RuleSettings(name="r", function=function))


# Anchors


@pytest.mark.parametrize(
    ("text", "anchor", "f1"),
    [
        ("Dear Ann, thank you!", "thank you dear Ann", 1.0),  # order and case aside
        ("thank you", "thank you very much", 2 * 2 / 6),
        ("thank thank thank", "thank you", 2 * 1 / 5),  # a word counts as often as both have it
        ("", "thank you", 0.0),
        ("no", "yes", 0.0),
        ("...", "!", 0.0),
    ],
)
def test_overlap_by_hand(text: str, anchor: str, f1: float) -> None:
    assert overlap(text, anchor) == pytest.approx(f1)


@settings(deadline=None)
@given(st.text(), st.text())
def test_overlap_is_symmetric_and_between_0_and_1(text: str, anchor: str) -> None:
    assert 0.0 <= overlap(text, anchor) == overlap(anchor, text) <= 1.0


async def test_the_nearest_anchor_counts_and_a_task_without_one_fails() -> None:
    anchor = Anchor(AnchorSettings(name="style"))
    reward = await anchor(view_of("thank you", {"anchor": ["go away", "thank you very much"]}))
    assert (reward.value, reward.shaping, reward.reason) == (pytest.approx(2 / 3), True, "nearest of 2: number 2")
    assert (await anchor(view_of("go away", {"anchor": "go away"}))).value == 1.0
    for data in ({}, {"anchor": ""}, {"anchor": []}, {"anchor": 3}, {"anchor": ["fine", 3]}):
        with pytest.raises(ScorerFailure, match="task k1 has no anchor"):
            await anchor(view_of("x", data))


def test_a_transcript_shows_calls_and_hides_reasoning() -> None:
    call = ToolCall("1", "run", {"b": 1, "a": "x"})
    messages = (
        system("Help."),
        assistant("Looking.", call, reasoning="secret"),
        tool_result(call, "fine"),
        assistant("", ToolCall("2", "", error="malformed call")),
    )
    assert transcript(messages) == (
        'system: Help.\n\nassistant: Looking.\nrun {"a": "x", "b": 1}\n\ntool: fine\n\nassistant: (malformed call)'
    )


# The mix


def constant(name: str, value: float, **options: Any) -> Rule:
    return rule(lambda view: value, name=name, **options)


class Late(Component):
    """Takes its time; notes whether it was cancelled."""

    name = "late"

    def __init__(self) -> None:
        self.cancelled = False

    async def __call__(self, view: ScoreView) -> Reward:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Reward("late", 1.0)


async def test_a_mix_reweights_the_environments_own_and_adds_its_components() -> None:
    own = (Reward("tests", 1.0), Reward("brevity", 4.0, 1.0, shaping=True))
    mix = RewardMix((constant("kind", 0.5, weight=2.0), constant("dash", 1.0, weight=-1.0)), {"brevity": -0.25})
    rewards = await mix.grade(own, view_of("x"))
    assert [(r.name, r.value, r.weight) for r in rewards] == [
        ("tests", 1.0, 1.0),
        ("brevity", 4.0, -0.25),
        ("kind", 0.5, 2.0),
        ("dash", 1.0, -1.0),
    ]
    assert Outcome(Stop.DONE, rewards).total() == 1.0 - 1.0 + 1.0 - 1.0
    assert await RewardMix().grade(own, view_of("x")) == own


@pytest.mark.parametrize(
    ("mix", "error", "message"),
    [
        (RewardMix(weights={"brevty": 1.0}), ConfigError, r"brevty: no such reward .* did you mean 'brevity'\?"),
        (RewardMix((constant("brevity", 1.0),)), ConfigError, "the environment gives a reward of this name"),
        (RewardMix((constant("odd", float("nan")),)), ScorerFailure, "reward odd of k1: ValueError: .* not finite"),
        (RewardMix((constant("odd", 1.0, shaping=True),)), ScorerFailure, r"every reward is shaping \(brevity, odd\)"),
    ],
)
async def test_a_mix_that_cannot_work_is_named(mix: RewardMix, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await mix.grade((Reward("brevity", 1.0, shaping=True),), view_of("x"))


async def test_the_first_failure_ends_the_other_components() -> None:
    def refuses(view: ScoreView) -> float:
        raise JudgeFailure("no verdict")

    late = Late()
    with pytest.raises(JudgeFailure, match=r"^no verdict$"):
        async with asyncio.timeout(5):
            await RewardMix((late, rule(refuses))).grade((Reward("tests", 1.0),), view_of("x"))
    assert late.cancelled


# Grading


async def graded(
    mix: RewardMix, score: Callable[[], tuple[Reward, ...]] | None = None, budget: Budget | None = None
) -> Trajectory:
    class Scored(Echo):
        async def score(self, view: ScoreView) -> tuple[Reward, ...]:
            return await super().score(view) if score is None else score()

    spec = spec_of(Scored)
    house = House(ScriptedEngine([DONE]), CHAT, None, budget or Budget(), rewards=mix)
    return await run_trajectory(Job("t1", spec.tasks.task("train", 0), spec, seed=7), house)


async def test_a_run_adds_its_rewards_to_the_environments() -> None:
    trajectory = await graded(RewardMix((constant("kind", 0.5, shaping=True),), {"done": 2.0}))
    assert [(r.name, r.value, r.weight) for r in trajectory.outcome.rewards] == [("done", 1.0, 2.0), ("kind", 0.5, 1.0)]
    assert (trajectory.outcome.result(), trajectory.outcome.total()) == (2.0, 2.5)


def _raises(error: Exception) -> Callable[[ScoreView], float]:
    def judge(view: ScoreView) -> float:
        raise error

    return judge


@pytest.mark.parametrize(
    ("error", "origin", "text"),
    [
        (KeyError("gone"), "scorer", "reward odd of train/0: KeyError: 'gone'"),
        (JudgeFailure("no verdict"), "judge", "no verdict"),
    ],
)
async def test_a_component_that_breaks_fails_the_attempt(error: Exception, origin: str, text: str) -> None:
    trajectory = await graded(RewardMix((rule(_raises(error), name="odd"),)))
    failure = trajectory.outcome.failure
    assert failure is not None
    assert (failure.origin, failure.message, trajectory.outcome.rewards) == (origin, text, ())


async def test_components_share_the_time_budget_of_grading() -> None:
    late = Late()
    trajectory = await graded(RewardMix((late,)), budget=Budget(score_s=1.0))
    failure = trajectory.outcome.failure
    assert failure is not None
    assert (failure.origin, failure.type, late.cancelled) == ("scorer", "OutOfTime", True)


async def test_a_mistaken_weight_stops_the_run_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"\[rewards.weights\] dome: .* did you mean 'done'"):
        await graded(RewardMix(weights={"dome": 1.0}))


# The recipe's table


def recipe_of(rewards: dict[str, Any], **tables: Any) -> Recipe:
    return parse_recipe({"env": {"id": "mine-v0"}, "rewards": rewards, **tables}, where="mine.toml")


JUDGE = {"name": "tone", "url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "kindness"}


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"jugde": [JUDGE]}, "unknown key 'rewards.jugde'; did you mean 'judge'?"),
        ({"judge": [{**JUDGE, "rubrik": "x"}]}, "unknown key 'rewards.judge.0.rubrik'; did you mean 'rubric'?"),
        ({"judge": [JUDGE, JUDGE]}, "two rewards are called 'tone'"),
        ({"judge": [JUDGE], "anchor": [{"name": "tone"}]}, "two rewards are called 'tone'"),
        ({"judge": [{**JUDGE, "low": 1.0}]}, "low = 1 must be below high = 1"),
        ({"judge": [{**JUDGE, "prompt": "Grade {task}"}]}, "must show {answer} or {transcript}"),
        ({"judge": [{**JUDGE, "prompt": "{answer} {anchor}"}]}, "exactly when the key anchor says where"),
        ({"judge": [{**JUDGE, "prompt": "{answer}", "anchor": "a"}]}, "exactly when the key anchor says where"),
        ({"judge": [{**JUDGE, "url": "localhost:8000"}]}, "rewards.judge.0.url"),
        ({"anchor": [{"name": "a/b"}]}, "rewards.anchor.0.name"),
        ({"anchor": [{"name": "a", "weight": float("inf")}]}, "rewards.anchor.0.weight"),
        ({"weights": {"done": float("nan")}}, "rewards.weights.done"),
    ],
)
def test_a_mistaken_table_is_named(rewards: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_of(rewards)
    assert message in str(error.value)


async def test_a_table_becomes_a_mix_and_survives_a_dump() -> None:
    table = {
        "weights": {"brevity": -0.5},
        "rule": [{"name": "words", "function": "glmgym.rewards:overlap", "options": {"anchor": "x"}}],
        "anchor": [{"name": "style", "weight": 0.25}],
        "judge": [{**JUDGE, "anchor": "style", "shaping": True}],
    }
    recipe = recipe_of(table)
    assert parse_recipe(json.loads(json.dumps(dump_recipe(recipe))), where="dump") == recipe
    mix = open_rewards(recipe.rewards, score_s=recipe.rollout.score_s)
    assert [component.name for component in mix.components] == ["words", "style", "tone"]
    assert mix.weights == {"brevity": -0.5}
    await mix.close()


def test_a_judge_must_end_before_grading_does() -> None:
    recipe = recipe_of({"judge": [{**JUDGE, "budget_s": 10.0}]})
    with pytest.raises(ConfigError, match=r"tone: budget_s = 10: must be below rollout.score_s = 10"):
        open_rewards(recipe.rewards, score_s=10.0)


def test_dynamic_sampling_needs_groups() -> None:
    with pytest.raises(ConfigError, match="algorithm 'sao' has no groups"):
        recipe_of({}, fleet={"dynamic_sampling": True})
    grouped = recipe_of({}, fleet={"dynamic_sampling": True}, algorithm={"name": "dis", "group_size": 4})
    assert grouped.fleet.dynamic_sampling


def test_messages_are_only_text() -> None:
    """A message without content or calls is an empty paragraph, not an error."""
    assert transcript((Message("assistant"),)) == "assistant: "

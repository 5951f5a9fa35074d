"""Context management in episodes: an engine's tokens and a policy's messages, and the options of ``glmgym eval``.

What becomes of messages alone is in test_folding.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import (
    CHAT,
    DONE,
    LOOK,
    TOKENIZER,
    Counting,
    Echo,
    NotedEngine,
    answer,
    assert_all_tokens_are_accounted_for,
    look,
    play,
    spec_of,
)
from evaluations import ENVIRONMENT, Done, invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from glmgym.chat import Chat, DialectName, History, Mark
from glmgym.chat.wire import STOP_MARKS
from glmgym.cli.app import app
from glmgym.compaction import CompactionSettings
from glmgym.env import ScoreView, Step
from glmgym.errors import ConfigError
from glmgym.evaluation import MessagePlayer, Reply
from glmgym.evaluation.endpoint import EndpointPolicy, EndpointSettings
from glmgym.evaluation.model_server import serve_model
from glmgym.folding import OMITTED, Management, View, fold
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, user
from glmgym.rollout import Budget, House, Job, run_recorded
from glmgym.store import TrajectoryStore
from glmgym.store.atif import told_by_tokens
from glmgym.store.codec import decode, encode
from glmgym.trajectory import Reward, Segment, SegmentEnd, Span, SpanKind, Stop, Trajectory
from glmgym.verify import Vocabulary, trajectory_problems
from glmgym_envs.search import MINI
from glmgym_envs.search.expert import oracle
from glmgym_envs.search.library import mini_library

VOCABULARY = Vocabulary(
    TOKENIZER.vocab_size,
    frozenset(TOKENIZER.id_of(mark) for mark in STOP_MARKS),
    frozenset(TOKENIZER.id_of(mark) for mark in (Mark.SYSTEM, Mark.USER, Mark.ASSISTANT, Mark.OBSERVATION)),
    TOKENIZER.sha256,
    TOKENIZER.id_of(Mark.END_THINK),
)
PROMPT = CHAT.opening([user("task 0")], [look.spec])
ROOMY = Budget(max_sampled_tokens=100_000)


def round_of(text: str) -> list[int]:
    """A turn that looks, and the text it gets."""
    return [*LOOK, *CHAT.delta([Message("tool", text)], last_id=LOOK[-1])]


WHOLE = [round_of(answer(n)) for n in range(10)]  # from 1 on
OLD = round_of(OMITTED)


def kinds(segment: Segment) -> str:
    """P prompt, O observation, C carried, A action."""
    return "".join(span.kind[0].upper() for span in segment.spans)


def assert_sound(trajectory: Trajectory, engine: NotedEngine) -> None:
    assert_all_tokens_are_accounted_for(trajectory, engine)
    assert list(trajectory_problems(trajectory, VOCABULARY)) == []


def managed(k: int | None, limit: int | None) -> Management:
    return Management(keep_recent=k, discard_above=limit)


def keep_recent(k: int | None) -> Management:
    return managed(k, None)


def discard_above(limit: int) -> Management:
    return managed(None, limit)


# Keep-recent-k


@pytest.mark.parametrize("k", [0, 1, 2, 5, 7, None])
async def test_the_engine_sees_old_results_folded_and_its_own_turns_to_the_id(k: int | None) -> None:
    """Algorithms 10: n = 7 rounds, k = 5 folds o1 and o2; n <= k folds none; k = 0 folds all."""
    env = Counting()
    trajectory, engine = await play(env, [LOOK] * 7 + [DONE], budget=ROOMY, management=keep_recent(k))
    for n, prompt in enumerate(engine.prompts):
        old = 0 if k is None else max(0, n - k)
        rounds = [*[OLD] * old, *WHOLE[old + 1 : n + 1]]
        assert prompt == [*PROMPT, *(i for each in rounds for i in each)]
    assert_sound(trajectory, engine)
    # To the environment and the scorer it never happened.
    assert [m.content for m in env.seen if m.role == "tool"] == [answer(n) for n in range(1, 8)]
    assert trajectory.outcome.total() == 1.0
    assert trajectory.num_turns == 8


async def test_a_fold_starts_a_segment_of_copies_and_what_it_leaves_alone_keeps_its_author() -> None:
    """k = 1, three rounds: o1 goes when o2 arrives, o2 when o3 arrives."""
    trajectory, _ = await play(Counting(), [LOOK] * 3 + [DONE], management=keep_recent(1))
    first, second, third = trajectory.segments
    assert [kinds(segment) for segment in trajectory.segments] == ["PAOA", "PCOCOA", "PCOCOCOA"]
    assert [segment.ended_by for segment in trajectory.segments] == [SegmentEnd.FORKED] * 2 + [SegmentEnd.END]
    assert [segment.num_sampled for segment in trajectory.segments] == [2 * len(LOOK), len(LOOK), len(DONE)]
    # Up to the first folded result nothing changes; what was sampled is masked where it is a copy.
    same = len(PROMPT) + len(LOOK)
    for segment in (second, third):
        assert segment.token_ids[:same].tolist() == first.token_ids[:same].tolist()
        assert segment.spans[1].token_ids.tolist() == LOOK
        assert segment.spans[1].logprobs is None
        assert not segment.sampled_mask[: -len(segment.spans[-1])].any()
    omitted = OLD[len(LOOK) :]
    assert [span.token_ids.tolist() == omitted for span in third.spans[2::2]] == [True, True, False]
    assert trajectory.provenance.management == {"keep_recent": 1, "discard_above": None}
    assert decode("t1", encode(trajectory)).provenance == trajectory.provenance


async def test_a_result_that_says_that_it_was_omitted_is_not_folded_again() -> None:
    """Folding changes no id here, so nothing forks."""

    class Silent(Echo):
        async def step(self, reply: Message) -> Step:
            step = await super().step(reply)
            return step if step.terminated else Step((Message("tool", OMITTED),))

    trajectory, engine = await play(Silent(), [LOOK] * 3 + [DONE], management=keep_recent(1))
    assert [kinds(segment) for segment in trajectory.segments] == ["P" + "AO" * 3 + "A"]
    assert_sound(trajectory, engine)


# Discard-all


@pytest.mark.parametrize(("tokens", "discarded"), [(32_768, False), (32_769, True)])
def test_exactly_the_limit_is_kept(tokens: int, discarded: bool) -> None:
    """Algorithms 10: T = 32,768."""
    assert Management().discards(tokens) is discarded
    assert not keep_recent(5).discards(tokens)


@pytest.mark.parametrize(("less", "restarts"), [(0, 0), (1, 1)])
async def test_the_observation_is_counted_before_the_history_goes(less: int, restarts: int) -> None:
    """Opening, two rounds and the second observation have T tokens: all stays; T + 1: only the opening does."""
    limit = len(PROMPT) + len(WHOLE[1]) + len(WHOLE[2]) - less
    engine = NotedEngine([LOOK, LOOK, DONE], context_length=4096)
    env = Counting()
    spec = spec_of(lambda: env)
    house = House(engine, CHAT, None, management=discard_above(limit))
    trajectory, transcript = await run_recorded(Job("t1", spec.tasks.task("train", 0), spec, seed=7), house)
    assert engine.prompts[2] == ([*PROMPT] if restarts else [*PROMPT, *WHOLE[1], *WHOLE[2]])
    assert [kinds(s) for s in trajectory.segments] == (["PAOA", "PA"] if restarts else ["PAOAOA"])
    assert transcript.flags == ({"restarts": 1} if restarts else {})
    assert [m.content for m in transcript.messages if m.role == "tool"] == [answer(1), answer(2)]
    assert trajectory.outcome.total() == 1.0
    assert_sound(trajectory, engine)


async def test_after_a_restart_folding_goes_on() -> None:
    """Both halves, k = 1: the third observation is one token too many, the fourth and fifth come after the restart."""
    limit = len(PROMPT) + 2 * len(OLD) + len(WHOLE[1]) - 1
    assert len(PROMPT) + len(OLD) + len(WHOLE[1]) <= limit
    management = Management(keep_recent=1, discard_above=limit)
    trajectory, engine = await play(Counting(), [LOOK] * 5 + [DONE], management=management)
    assert engine.prompts[2:] == [
        [*PROMPT, *OLD, *WHOLE[2]],
        [*PROMPT],
        [*PROMPT, *WHOLE[4]],
        [*PROMPT, *OLD, *WHOLE[5]],
    ]
    assert [kinds(s) for s in trajectory.segments] == ["PAOA", "PCOCOA", "PAOA", "PCOCOA"]
    assert_sound(trajectory, engine)


@pytest.mark.parametrize(("management", "stop"), [(keep_recent(5), Stop.CONTEXT_FULL), (discard_above(500), Stop.DONE)])
async def test_an_observation_beyond_the_context_is_discarded_with_the_history(
    management: Management, stop: Stop
) -> None:
    class Long(Echo):
        async def step(self, reply: Message) -> Step:
            step = await super().step(reply)
            return step if step.terminated else Step((Message("tool", "so much " * 2000),))

    trajectory, engine = await play(Long(), [LOOK, DONE], context_length=600, management=management)
    assert trajectory.outcome.stop is stop
    assert_sound(trajectory, engine)


class Asks(Echo):
    """Asks a question with the second result."""

    async def step(self, reply: Message) -> Step:
        step = await super().step(reply)
        more = (user("Why?"),) if self.steps == 2 else ()
        return step if step.terminated else Step((Message("tool", answer(self.steps)), *more))


def thoughtful(chat: Chat) -> list[list[int]]:
    """Three turns that look, and one that answers."""
    thought = chat.turn(assistant("", ToolCall("c", "look", {"where": "here"}), reasoning="hm"))
    return [*[thought] * 3, chat.turn(assistant("done", reasoning="so"))]


@pytest.mark.parametrize("dialect", ["glm45", "glm47"])
async def test_a_restart_opens_the_thought_that_a_fork_had_closed(dialect: DialectName) -> None:
    """The question takes the prompt's ``<think>`` with the reasoning after it; the third result is too much."""
    chat = Chat(TOKENIZER, dialect, thinking=True, history="rerender")
    turns = thoughtful(chat)
    _, engine = await play(Asks(), turns, chat=chat)
    limit = len(engine.prompts[2])
    trajectory, managed = await play(Asks(), turns, chat=chat, management=discard_above(limit))
    assert managed.prompts == [*engine.prompts[:3], engine.prompts[0]]
    assert [kinds(s) for s in trajectory.segments] == ["PAOA", "PCOCOA", "PA"]
    assert_sound(trajectory, managed)


@pytest.mark.parametrize("dialect", ["glm45", "glm47"])
async def test_reasoning_and_results_go_in_one_fork(dialect: DialectName) -> None:
    """A dialect that drops reasoning when a user speaks: the observation here is a result and a question at once."""

    chat = Chat(TOKENIZER, dialect, thinking=True, history="rerender")
    thought, *_ = turns = thoughtful(chat)
    plain = thought[thought.index(TOKENIZER.id_of(Mark.END_THINK)) :]
    env = Asks()
    trajectory, engine = await play(env, turns, chat=chat, management=keep_recent(1))
    assert [kinds(s) for s in trajectory.segments] == ["PAOA", "PCOCOA", "PCOCOCOA"]
    assert trajectory.segments[1].spans[1].token_ids.tolist()[-len(plain) :] == plain
    # Six messages before the third turn, and two more after it; "Why?" stays, only results are folded.
    assert engine.prompts[2:] == [chat.opening(fold(env.seen[:n], keep=1), [look.spec]) for n in (6, 8)]
    assert ["hm" in TOKENIZER.decode(prompt) for prompt in engine.prompts] == [False, True, False, True]
    assert_sound(trajectory, engine)


# Any episode


class Wild(Echo):
    """Answers with results, questions, or both; notes the conversation before each turn.

    ``well_behaved``: a result for each call, and for nothing else.
    """

    def __init__(self, seed: int, *, well_behaved: bool = False) -> None:
        self.rng = random.Random(seed)
        self.well_behaved = well_behaved
        self.said: list[Message] = []
        self.before: list[tuple[Message, ...]] = []

    async def step(self, reply: Message) -> Step:
        self.said.append(reply)
        count = len(reply.tool_calls) if self.well_behaved else self.rng.randrange(3)
        found = [Message("tool", "x " * self.rng.randrange(1, 60)) for _ in range(count)]
        asked = [user("Go on.")] if not found or self.rng.random() < 0.2 else []
        self.said += [*found, *asked]
        self.before.append(tuple(self.said))
        return Step((*found, *asked))

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("done", 1.0),)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    keep=st.none() | st.integers(0, 4),
    limit=st.none() | st.integers(200, 500),
    dialect=st.sampled_from(["glm45", "glm47"]),
    thinking=st.booleans(),
    history=st.sampled_from(["preserve", "rerender"]),
)
async def test_engine_and_messages_agree(
    seed: int, keep: int | None, limit: int | None, dialect: DialectName, thinking: bool, history: History
) -> None:
    """Before each turn the engine sees what rendering the managed messages from the start would give."""
    chat, management = Chat(TOKENIZER, dialect, thinking=thinking, history=history), managed(keep, limit)
    rng, env = random.Random(seed), Wild(seed, well_behaved=True)

    def turn(prompt: Sequence[int], session: str, number: int) -> list[int]:
        calls = [ToolCall(f"c{i}", "look", {"where": "there"}) for i in range(rng.randrange(3))]
        return chat.turn(assistant("I see", *calls, reasoning="hm" if thinking else None))

    trajectory, engine = await play(env, turn, chat=chat, budget=ROOMY, management=management, context_length=9999)
    assert_sound(trajectory, engine)
    assert len(engine.prompts) == 16
    tools = [look.spec]
    view = View(management, lambda messages: len(chat.opening(messages, tools)), opening=1)
    question = user("task 0")
    seen = [(question,), *((question, *said) for said in env.before)]
    for prompt, messages in zip(engine.prompts, seen, strict=False):
        assert prompt == chat.opening(view.of(messages), tools)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    keep=st.none() | st.integers(0, 3),
    limit=st.none() | st.integers(100, 400),
    history=st.sampled_from(["preserve", "rerender"]),
    dialect=st.sampled_from(["glm45", "glm47"]),
)
async def test_whatever_is_sampled_is_trained_once(
    seed: int, keep: int | None, limit: int | None, history: History, dialect: DialectName
) -> None:
    """Turns of any ids: cut, empty, with markers in the middle of nowhere."""
    chat = Chat(TOKENIZER, dialect, thinking=True, history=history)
    rng, env, management = random.Random(seed), Wild(seed), managed(keep, limit)
    odd = [TOKENIZER.id_of(mark) for mark in (Mark.THINK, Mark.END_THINK, Mark.CALL, Mark.RESPONSE)]
    words = TOKENIZER.encode("some words to say and more")
    ends = [TOKENIZER.id_of(Mark.USER), TOKENIZER.id_of(Mark.OBSERVATION)]

    def turn(prompt: Sequence[int], session: str, number: int) -> list[int]:
        said = [rng.choice([*odd, *words]) for _ in range(rng.randrange(9))]
        return [*said, *rng.choices(ends, k=rng.randrange(2))]

    trajectory, engine = await play(env, turn, chat=chat, budget=ROOMY, management=management)
    assert trajectory.outcome.is_valid
    assert_sound(trajectory, engine)
    assert decode("t1", encode(trajectory)).num_sampled == trajectory.num_sampled


# What is refused, and what a record may not say


def test_compaction_and_management_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"exclude each other.*--keep-recent"):
        House(
            NotedEngine([], context_length=40_000),
            CHAT,
            None,
            compaction=CompactionSettings(),
            management=Management(),
        )


@pytest.mark.parametrize("limit", [4096, 4095])
def test_a_limit_that_the_context_does_not_hold_is_refused(limit: int) -> None:
    engine = NotedEngine([], context_length=4096)
    if limit < 4096:
        House(engine, CHAT, None, management=discard_above(limit))
        return
    with pytest.raises(ConfigError, match="discard_above = 4096: must be less than the context of 4096 tokens"):
        House(engine, CHAT, None, management=discard_above(limit))


def span(kind: SpanKind, *ids: int) -> Span:
    n = len(ids)
    sampled = (np.zeros(n, np.float32), np.zeros(n, np.int32)) if kind.is_sampled else (None, None)
    return Span(kind, np.array(ids), *sampled)


@pytest.mark.parametrize(("prompt", "ok"), [((1, 2), True), ((1, 2, 3), True), ((1,), True), ((2,), False), ((), None)])
async def test_a_fork_from_another_prompt_is_found(prompt: tuple[int, ...], ok: bool | None) -> None:
    """A ``<think>`` may come or go at its end; nothing else, and no more than one token."""
    played, _ = await play(Counting(), [LOOK] * 2 + [DONE], management=discard_above(len(PROMPT) + len(WHOLE[1])))
    first, second = played.segments
    start = span(SpanKind.PROMPT, *(prompt or (1, 2, 3, 4)))
    before = Segment((span(SpanKind.PROMPT, 1, 2), *first.spans[1:]), first.ended_by)
    made = Trajectory("t", "task", "env", (before, Segment((start, *second.spans[1:]))), played.outcome)
    found = [text for text in trajectory_problems(made, None) if "prompt of the segment before" in text]
    assert bool(found) is not bool(ok)


async def test_results_are_told_once_where_only_tokens_are_kept() -> None:
    trajectory, _ = await play(Counting(), [LOOK] * 3 + [DONE], management=keep_recent(1))
    told = told_by_tokens(trajectory, TOKENIZER.decode, CHAT.parse)
    assert [m.role for m in told] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert all(answer(n) in told[2 * n].content for n in range(1, 4))


# Policies of messages


@dataclass
class Noted:
    """Plays given turns and notes what it was shown."""

    turns: list[Message] = field(default_factory=list)
    name: str = "noted"
    digest: str = "0"
    shown: list[tuple[Message, ...]] = field(default_factory=list)

    def speaker(self, job: Job) -> Noted:
        self.turns = self.turns or oracle(mini_library(), job.task)
        return self

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        self.shown.append(tuple(messages))
        return Reply(self.turns[len(self.shown) - 1])

    async def close(self) -> None:
        return None


async def test_an_episode_under_management_is_graded_on_the_whole_and_recorded_whole() -> None:
    long = (MINI.tasks.task("train", index) for index in range(MINI.tasks.size("train")))
    task = next(task for task in long if len(oracle(mini_library(), task)) >= 9)
    expert = Noted()
    player = MessagePlayer(expert, None, Budget(max_turns=24), management=keep_recent(1))
    _, transcript = await player.play(Job("j", task, MINI, seed=0))
    assert transcript.outcome.result() == 1.0
    assert not any(message.content == OMITTED for message in transcript.messages)
    last = expert.shown[-1]
    assert last == fold(transcript.messages[: len(last)], keep=1)
    assert sum(message.content == OMITTED for message in last) == len(expert.turns) - 2


async def test_a_model_behind_an_endpoint_is_sent_the_managed_history() -> None:
    asked: list[Any] = []

    def rule(request: Mapping[str, Any]) -> Message:
        asked.append([message["content"] for message in request["messages"] if message["role"] == "tool"])
        return assistant("done") if len(asked) == 3 else assistant("", ToolCall("c", "look", {"where": "here"}))

    async with serve_model(rule) as url:
        policy = EndpointPolicy(EndpointSettings(url=url, model="m"))
        player = MessagePlayer(policy, None, Budget(), management=keep_recent(1))
        spec = spec_of(Counting)
        _, transcript = await player.play(Job("j", spec.tasks.task("train", 0), spec, seed=0))
        await policy.close()
    assert asked == [[], [answer(1)], [OMITTED, answer(2)]]
    assert transcript.outcome.total() == 1.0


async def test_restarts_of_a_policy_of_messages_are_flagged() -> None:
    """Each message counts 1: question and round are 3, and at the second round 5 is more than 4."""
    call = assistant("", ToolCall("c", "look", {"where": "here"}))
    policy = Noted([call, call, call, call, assistant("done")])
    player = MessagePlayer(policy, None, Budget(), management=discard_above(4), count=len)
    spec = spec_of(Counting)
    _, transcript = await player.play(Job("j", spec.tasks.task("train", 0), spec, seed=0))
    assert [len(shown) for shown in policy.shown] == [1, 3, 1, 3, 1]
    assert transcript.flags == {"restarts": 2}
    assert len(transcript.messages) == 1 + 2 * 4 + 1


# The command line


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle waits three times and answers right: 7 messages."""
    three = 'lambda task: [*[assistant("", ToolCall("c", "wait", {"moments": 1}))] * 3, assistant("1")]'
    text = (
        ENVIRONMENT.replace("SECONDS", "0").replace("slow-v0", "managed-v0").replace("oracle=oracle", f"oracle={three}")
    )
    path = tmp_path_factory.mktemp("suite") / "env.py"
    path.write_text(text)
    return path


def evaluated(suite: Path, *options: object) -> Done:
    return invoke("eval", "--policy", "scripted:expert", "--suite", suite, "--tasks", 2, *options)


def test_the_settings_stand_wherever_the_result_does(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "context managed: keep recent 1, discard above 120 tokens"
    done = evaluated(suite, "--keep-recent", 1, "--discard-above", 120, "--out", out)
    assert done.output.startswith(words)
    assert "flags: restarts 2 in 2 attempts" in done.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["management"] == {"keep_recent": 1, "discard_above": 120}
    assert summary["flags"] == {"restarts": {"count": 2, "attempts": 2}}
    assert summary["overall"]["mean"] == 1.0
    assert words in (out / "report.html").read_text()
    assert invoke("report", out).output.startswith(words)


def test_without_options_nothing_is_managed(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "context managed" not in evaluated(suite, "--out", out).output
    assert json.loads((out / "summary.json").read_text())["management"] is None
    assert "context managed" not in (out / "report.html").read_text()


def test_what_management_is_worth_can_be_compared(suite: Path, tmp_path: Path) -> None:
    evaluated(suite, "--out", tmp_path / "plain")
    evaluated(suite, "--keep-recent", 1, "--out", tmp_path / "managed")
    done = invoke("compare", tmp_path / "plain", tmp_path / "managed")
    assert done.error == ""
    assert "A: scripted:expert\nB: scripted:expert, context managed: keep recent 1\n" in done.output


def test_an_evaluation_is_resumed_under_the_same_management_only(suite: Path, tmp_path: Path) -> None:
    """The settings are in the key of each attempt."""
    out = tmp_path / "out"
    evaluated(suite, "--keep-recent", 1, "--out", out)
    lines = (out / "attempts.jsonl").read_text()
    assert (
        "playing.management.keep_recent: 1 and 2"
        in evaluated(suite, "--keep-recent", 2, "--out", out, "--resume").error
    )
    assert "playing.management.keep_recent: 1 and None" in evaluated(suite, "--out", out, "--resume").error
    assert evaluated(suite, "--keep-recent", 1, "--out", out, "--resume").error == ""
    assert (out / "attempts.jsonl").read_text() == lines
    keys = {json.loads(line)["key"] for line in lines.splitlines()}
    evaluated(suite, "--keep-recent", 2, "--out", tmp_path / "other")
    others = {json.loads(line)["key"] for line in (tmp_path / "other" / "attempts.jsonl").read_text().splitlines()}
    assert not keys & others


@pytest.mark.parametrize(("option", "value"), [("--keep-recent", -1), ("--discard-above", 0), ("--keep-recent", "few")])
def test_a_number_that_cannot_be_is_refused(option: str, value: object) -> None:
    refused = CliRunner().invoke(app, ["eval", "--policy", "scripted:expert", "--suite", "x", option, str(value)])
    assert refused.exit_code == 2
    assert f"Invalid value for '{option}'" in refused.output


def test_compaction_of_a_recipe_is_refused_beside_management(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[compaction]\nreserve_tokens = 400\nmax_summary_tokens = 64\n")
    options = ("--policy", "quickstart", "--suite", "terminal-basics", "--keep-recent", 1, "--like", recipe)
    assert "exclude each other" in invoke("eval", *options).error


@pytest.mark.parametrize(("option", "value"), [("--keep-recent", 1), ("--discard-above", 150)])
def test_a_checkpoint_is_managed_to_the_token(tmp_path: Path, bubblewrap_works: None, option: str, value: int) -> None:
    """The shipped policy needs three turns, so that its first result goes; what is stored verifies, shows, exports."""
    out = tmp_path / "out"
    done = invoke(
        "eval", "--policy", "quickstart", "--suite", "terminal-basics", "--tasks", 2, option, value, "--out", out
    )
    assert done.output.startswith("context managed: ")
    assert "no problem" in invoke("verify", out).output
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite", read_only=True) as store:
        trajectories = [store.get(id) for id in store.recorded()]
    attempts = [json.loads(line) for line in (out / "attempts.jsonl").read_text().splitlines()]
    restarts = sum(attempt["transcript"]["flags"].get("restarts", 0) for attempt in attempts)
    forked = [segment for trajectory in trajectories for segment in trajectory.segments[1:]]
    fresh = [segment for segment in forked if segment.spans[1].kind is SpanKind.ACTION]
    assert forked
    assert len(fresh) == restarts == (0 if option == "--keep-recent" else len(forked))
    for trajectory in trajectories:
        opening = trajectory.segments[0].spans[0].token_ids.tolist()
        assert all(segment.spans[0].token_ids.tolist() == opening for segment in trajectory.segments)
        assert trajectory.provenance.management[option[2:].replace("-", "_")] == value
    shown = invoke("inspect", out, next(t.id for t in trajectories if len(t.segments) > 1)).output
    assert "segment 2 of" in shown
    assert ("carried over" in shown) == (option == "--keep-recent")
    assert invoke("export", out, "--atif", tmp_path / "atif").error == ""

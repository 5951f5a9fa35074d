"""Compaction: when a summary is asked for, what goes on from it, and that every sampled token is still trained once."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from episodes import (
    CHAT,
    DONE,
    LOOK,
    THINKING,
    TOKENIZER,
    Counting,
    Echo,
    NotedEngine,
    answer,
    assert_all_tokens_are_accounted_for,
    play,
    spec_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.chat import Chat, DialectName, History, Mark
from glmgym.compaction import CompactionSettings, must_compact
from glmgym.engines import Fault
from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError
from glmgym.messages import Message, system, user
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.sandbox import Sandbox
from glmgym.settings import parse_settings
from glmgym.store.codec import decode, encode
from glmgym.trajectory import Reward, Segment, SegmentEnd, SpanKind, Stop, Trajectory
from glmgym.verify import trajectory_problems

X, Y, Z, W = (TOKENIZER.encode(letter)[0] for letter in "xyzw")
USER, ASSISTANT, THINK, END_THINK = (
    TOKENIZER.id_of(mark) for mark in (Mark.USER, Mark.ASSISTANT, Mark.THINK, Mark.END_THINK)
)
PROMPT = CHAT.opening([user("task 0")], [Echo.tools[0].spec])
REPLY = CHAT.delta([Message("tool", "nothing here")], last_id=LOOK[-1])  # what the tool's reply adds
ASK = CHAT.delta([user("Sum up.")], last_id=-1)
QUESTION = len(ASK) - len(CHAT.generation_prompt)  # tokens the request adds
NOTE = [X, Y, Z]
LONG = "go on " * 12


def kinds(segment: Segment) -> str:
    """P prompt, O observation, C carried, A action, S summary."""
    return "".join(span.kind[0].upper() for span in segment.spans)


def compact(**given: Any) -> CompactionSettings:
    return CompactionSettings(
        **{"request": "Sum up.", "resume": "So far: {summary}", "max_summary_tokens": len(NOTE), **given}
    )


# When


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [(65_536, 55_296, False), (65_536, 55_297, True), (81_920, 71_680, False), (81_920, 71_681, True)],
)
def test_a_summary_is_due_once_fewer_than_the_reserve_remain(limit: int, used: int, expected: bool) -> None:
    """Specification 6.6, trigger: the published reserve of 10,240, strict."""
    assert must_compact(limit, used, CompactionSettings().reserve_tokens) is expected


@pytest.mark.parametrize(("spare", "due"), [(0, False), (-1, True)])
async def test_the_observation_is_counted_before_the_decision(spare: int, due: bool) -> None:
    """The context with its last observation leaves exactly the reserve: the play goes on; one less: a summary."""
    reserve = 40
    limit = len(PROMPT) + len(LOOK) + len(REPLY) + reserve + spare
    turns = [LOOK, NOTE, DONE] if due else [LOOK, DONE]
    trajectory, engine = await play(
        Echo(), turns, context_length=limit, compaction=compact(reserve_tokens=reserve, keep_pairs=0)
    )
    assert len(trajectory.segments) == 1 + due
    assert trajectory.outcome.stop is Stop.DONE
    assert_all_tokens_are_accounted_for(trajectory, engine)


# The worked example


class Scene(Echo):
    """Answers each turn with the next of the given users' messages; after the last one the episode is over."""

    tools = ()

    def __init__(self, opening: Sequence[Message], *replies: str) -> None:
        self.opening = opening
        self.replies = list(replies)

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        return Opening(tuple(self.opening))

    async def step(self, reply: Message) -> Step:
        self.steps += 1
        return Step((user(self.replies.pop(0)),)) if self.replies else Step(terminated=True)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        self.seen = view.messages
        return (Reward("done", 1.0),)


async def test_the_provenance_of_every_token_is_that_of_the_worked_example() -> None:
    """Specification 6.6: |s|=3 |u|=2 a1=2 o1=3 a2=2 o2=2, k=1, |q|=2, |S|=3, wrapper 2, a3=2; equation 9 strict.

    Generation prompts of two tokens are counted to what stands before them.
    """
    env = Scene([user("")], "y", "")
    settings = CompactionSettings(
        reserve_tokens=8, keep_pairs=1, max_summary_tokens=3, keep_task=False, request="q", resume="{summary}"
    )
    trajectory, engine = await play(
        env, [[X, USER], [Y, USER], [X, Y, Z], [W, USER]], context_length=20, compaction=settings
    )
    first, second = trajectory.segments
    assert [len(prompt) for prompt in engine.prompts] == [5, 5 + 2 + 3, 16, 12]
    assert "".join("01"[int(sampled)] for sampled in first.sampled_mask) == "00000" + "110001100" + "00" + "111"
    assert "".join("01"[int(sampled)] for sampled in second.sampled_mask) == "0" * 12 + "11"
    # The execution part trains 4 tokens, the summary 3, the last part 2: N_after = (5, 2, 0), |M| = 9.
    parts = [sum(len(s) for s in first.spans if s.kind is kind) for kind in (SpanKind.ACTION, SpanKind.SUMMARY)]
    assert [*parts, second.num_sampled] == [4, 3, 2]
    assert trajectory.num_sampled == len(engine.sampled) == 9
    # The reward of the execution part is due on the last token of a2, the 7th of the response (index 6), not on o2.
    last_action = [i for i, span in enumerate(first.spans) if span.kind is SpanKind.ACTION][-1]
    assert sum(map(len, first.spans[: last_action + 1])) - 1 == len(first.spans[0]) + 6
    opening = [TOKENIZER.id_of("[gMASK]"), TOKENIZER.id_of("<sop>"), USER]
    assert engine.prompts[3] == [*opening, X, Y, Z, ASSISTANT, END_THINK, Y, USER, ASSISTANT, END_THINK]
    assert first.ended_by is SegmentEnd.COMPACTED
    assert (trajectory.num_turns, env.steps) == (3, 3)
    assert_all_tokens_are_accounted_for(trajectory, engine)


# What goes on


def resumed(summary: Sequence[int], *pairs: Sequence[int]) -> list[int]:
    """The prompt after a compaction that keeps the task."""
    before, after = CHAT.opening_around("{summary}", [user("task 0"), user("So far: {summary}")], [Echo.tools[0].spec])
    return [*before, *summary, *after, *(i for pair in pairs for i in pair)]


PAIR = [*LOOK, *REPLY]
PAIRS = [[*LOOK, *CHAT.delta([Message("tool", answer(n))], last_id=LOOK[-1])] for n in range(10)]
LATE = len(PROMPT) + 3 * len(PAIRS[1])  # tokens after the third observation


@pytest.mark.parametrize("k", [0, 1, 2, 3, 9])
async def test_the_last_pairs_and_the_summary_are_copied_to_the_id(k: int) -> None:
    """A summary of ids that no text encodes to (two markers of a call amid words) comes back exactly so."""
    odd = [X, TOKENIZER.id_of("<tool_call>"), TOKENIZER.encode(" y")[0], USER]
    assert TOKENIZER.encode(TOKENIZER.decode(odd)) != odd
    reserve = 6 + QUESTION
    settings = compact(reserve_tokens=reserve, keep_pairs=k, max_summary_tokens=4)
    kept = min(k, 2)  # three would ask for a summary again
    env = Counting()
    trajectory, engine = await play(
        env, [LOOK, LOOK, LOOK, odd, DONE], context_length=LATE + reserve - 1, compaction=settings
    )
    assert engine.prompts[3] == [*PROMPT, *PAIRS[1], *PAIRS[2], *PAIRS[3][: -len(CHAT.generation_prompt)], *ASK]
    assert engine.requests[3].max_tokens == 4
    assert engine.prompts[4] == resumed(odd[:-1], *PAIRS[4 - kept : 4])
    first, second = trajectory.segments
    assert kinds(first) == "P" + "AO" * 3 + "S"
    assert kinds(second) == "PCP" + "CCP" * kept + "A"
    assert second.num_turns == 1
    assert list(trajectory_problems(trajectory, None)) == []
    assert_all_tokens_are_accounted_for(trajectory, engine)
    # To the environment and the scorer it never happened; the call in it was not made.
    assert env.steps == trajectory.num_turns == 4
    assert [m.role for m in env.seen] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert trajectory.outcome.total() == 1.0


def note_when_asked(prompt: Sequence[int], session: str, turn: int) -> list[int]:
    """Looks for ever, and writes a summary when it is asked for one."""
    return NOTE if list(prompt[-len(ASK) :]) == ASK else LOOK


@pytest.mark.parametrize(("more", "kept"), [(0, 2), (1, 1)])
async def test_as_many_pairs_are_kept_as_leave_the_reserve(more: int, kept: int) -> None:
    """Two pairs leave exactly the reserve: both stay; it is one more: the older pair goes, as a whole."""
    limit = LATE + 100
    reserve = limit - len(resumed(NOTE, *PAIRS[2:4])) + more
    settings = compact(reserve_tokens=reserve, keep_pairs=2)
    trajectory, engine = await play(
        Counting(), [LOOK, LOOK, LOOK, NOTE, DONE], context_length=limit, compaction=settings
    )
    assert engine.prompts[4] == resumed(NOTE, *PAIRS[4 - kept : 4])
    assert trajectory.outcome.stop is Stop.DONE


@pytest.mark.parametrize(("more", "stop"), [(0, Stop.DONE), (1, Stop.CONTEXT_FULL)])
async def test_a_summary_too_long_to_go_on_from_fills_the_context(more: int, stop: Stop) -> None:
    """Even without a pair one token of the reserve is missing: the episode is cut, and the summary trains with it."""
    limit = LATE + 100
    settings = compact(reserve_tokens=limit - len(resumed(NOTE)) + more)
    trajectory, engine = await play(Counting(), [LOOK, NOTE, DONE], context_length=limit, compaction=settings)
    assert trajectory.outcome.stop is stop
    assert trajectory.outcome.is_valid
    assert [segment.ended_by for segment in trajectory.segments][-1] is SegmentEnd.END
    assert kinds(trajectory.segments[0]) == "PAOS"
    assert len(trajectory.segments) == (1 if more else 2)
    assert_all_tokens_are_accounted_for(trajectory, engine)


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_after_the_last_compaction_a_full_context_ends_the_episode(most: int) -> None:
    settings = compact(reserve_tokens=30, keep_pairs=1, max_compactions=most)
    trajectory, engine = await play(Counting(), note_when_asked, context_length=LATE, max_turns=99, compaction=settings)
    assert trajectory.outcome.stop is Stop.CONTEXT_FULL
    assert [segment.ended_by for segment in trajectory.segments] == [SegmentEnd.COMPACTED] * most + [SegmentEnd.END]
    assert "S" not in kinds(trajectory.segments[-1])
    assert len(trajectory.segments[-1]) > LATE - 30  # the reserve was used up
    assert_all_tokens_are_accounted_for(trajectory, engine)


async def test_a_pair_that_was_carried_is_carried_again() -> None:
    """k = 3, one new turn between two compactions: the older two pairs come from the segment before, and are copies."""
    settings = compact(reserve_tokens=40, keep_pairs=3, max_compactions=2)
    limit = len(resumed(NOTE, *PAIRS[1:4])) + 40
    trajectory, engine = await play(Counting(), note_when_asked, context_length=limit, max_turns=6, compaction=settings)
    first, second, third = trajectory.segments
    assert [kinds(segment) for segment in (first, second)] == ["P" + "AO" * 4 + "S", "PCP" + "CCP" * 3 + "AOS"]
    assert kinds(third).startswith("PCP" + "CCP" * 3)
    assert engine.prompts[5] == resumed(NOTE, *PAIRS[2:5])
    assert engine.prompts[7] == resumed(NOTE, *PAIRS[3:6])
    assert list(trajectory_problems(trajectory, None)) == []
    assert_all_tokens_are_accounted_for(trajectory, engine)


@pytest.mark.parametrize(("keep_task", "roles"), [(True, "system user user"), (False, "system user")])
async def test_the_task_is_kept_or_left_to_the_summary(keep_task: bool, roles: str) -> None:
    """Equation 9 keeps the system prompt alone."""
    env = Scene([system("Be brief."), user("What is x?")], LONG)
    settings = compact(reserve_tokens=64, keep_task=keep_task, keep_pairs=0)
    trajectory, engine = await play(env, [[X, USER], NOTE, [Y, USER]], context_length=100, compaction=settings)
    messages = [system("Be brief."), *([user("What is x?")] if keep_task else []), user("So far: xyz")]
    assert " ".join(message.role for message in messages) == roles
    assert TOKENIZER.decode(engine.prompts[2]) == CHAT.opening_text(messages)
    assert trajectory.outcome.stop is Stop.DONE


# What a summary may be


@pytest.mark.parametrize(
    ("chat", "sampled", "words"),
    [
        (CHAT, [X, Y, USER], [X, Y]),
        (CHAT, [X, Y, Z], [X, Y, Z]),  # cut by its length: used as it is
        (CHAT, [USER], []),
        (CHAT, [X, END_THINK, Y, USER], [Y]),
        (CHAT, [X, THINK, Y, Z], [X]),
        (THINKING, [X, END_THINK, Y, USER], [Y]),
        (THINKING, [X, END_THINK, Y, THINK, Z], [Y]),
        (THINKING, [X, Y, Z], []),  # cut in its reasoning
        (THINKING, [X, USER], []),
        (THINKING, [X, END_THINK], []),
    ],
)
async def test_the_words_of_a_summary_are_one_run_of_its_ids(chat: Chat, sampled: list[int], words: list[int]) -> None:
    """Reasoning and the marker that ended it are not repeated; one without words goes on as an empty text."""
    assert chat.words(sampled) == words
    env = Scene([user("What is x?")], LONG)
    settings = compact(reserve_tokens=64, keep_pairs=0, max_summary_tokens=len(sampled))
    trajectory, engine = await play(
        env, [[X, USER], sampled, [Y, USER]], chat=chat, context_length=100, compaction=settings
    )
    before, after = chat.opening_around("{summary}", [user("What is x?"), user("So far: {summary}")])
    assert engine.prompts[2] == [*before, *words, *after]
    assert kinds(trajectory.segments[1]) == ("PCPA" if words else "PPA")
    assert list(trajectory_problems(trajectory, None)) == []
    assert_all_tokens_are_accounted_for(trajectory, engine)


async def test_an_engine_that_samples_nothing_as_a_summary_leaves_no_span() -> None:
    env = Scene([user("What is x?")], LONG)
    settings = compact(reserve_tokens=64, keep_pairs=0)
    trajectory, engine = await play(
        env,
        [[X, USER], [USER], [Y, USER]],
        context_length=100,
        fault=lambda session, turn: Fault.STRIPPED_STOP if turn == 1 else None,
        compaction=settings,
    )
    assert [kinds(segment) for segment in trajectory.segments] == ["PAO", "PPA"]
    assert trajectory.segments[0].ended_by is SegmentEnd.COMPACTED
    assert list(trajectory_problems(trajectory, None)) == []
    assert trajectory.num_sampled == len(engine.sampled) == 4


# What a summary costs


@pytest.mark.parametrize(
    ("most", "stop", "summary"),
    [(len(LOOK) + 2, Stop.BUDGET, 2), (len(LOOK) + 3, Stop.BUDGET, 3), (len(LOOK) + 4, Stop.BUDGET, 3)],
)
async def test_a_summary_spends_sampled_tokens(most: int, stop: Stop, summary: int) -> None:
    """The last of them cuts it or goes into it: no turn follows. One is left: a turn of one token does."""
    settings = compact(reserve_tokens=40, keep_pairs=0)
    limit = len(PROMPT) + len(PAIR) + 39
    trajectory, engine = await play(
        Echo(), [LOOK, NOTE, LOOK], context_length=limit, budget=Budget(max_sampled_tokens=most), compaction=settings
    )
    assert trajectory.outcome.stop is stop
    assert sum(len(s) for s in trajectory.segments[0].spans if s.kind is SpanKind.SUMMARY) == summary
    assert trajectory.num_sampled == most
    assert trajectory.num_turns == 1 + (most - len(LOOK) - summary)
    assert_all_tokens_are_accounted_for(trajectory, engine)


async def test_wall_time_ends_a_summary_and_keeps_what_was_written() -> None:
    settings = compact(reserve_tokens=40, keep_pairs=0, max_summary_tokens=6)
    trajectory, engine = await play(
        Echo(),
        [LOOK, [*NOTE, *NOTE]],
        context_length=len(PROMPT) + len(PAIR) + 39,
        budget=Budget(wall_s=1.0),  # the turn before takes a millisecond
        fault=lambda session, turn: Fault.STALL if turn else None,
        compaction=settings,
    )
    assert trajectory.outcome.stop is Stop.BUDGET
    (segment,) = trajectory.segments
    assert kinds(segment) == "PAOS"
    assert segment.spans[-1].token_ids.tolist() == NOTE
    assert engine.sampled == [*LOOK, *NOTE]


@pytest.mark.parametrize(("spare", "stop"), [(0, Stop.CONTEXT_FULL), (1, Stop.DONE)])
async def test_an_observation_that_leaves_no_room_for_a_summary_fills_the_context(spare: int, stop: Stop) -> None:
    """It jumps from an empty context past the reserve: request and observation fill it, or leave room for one token."""
    env = Scene([user("What is x?")], LONG)
    opening = len(CHAT.opening([user("What is x?")]))
    observed = len(CHAT.delta([user(LONG)], last_id=USER))
    settings = compact(reserve_tokens=40, keep_pairs=0)
    trajectory, engine = await play(
        env,
        [[X, USER], NOTE, [Y, USER]],
        context_length=opening + 2 + observed + QUESTION + spare,
        compaction=settings,
    )
    assert trajectory.outcome.stop is stop
    if stop is Stop.DONE:
        assert engine.requests[1].max_tokens == 1
        assert engine.answers[1].token_ids.tolist() == NOTE[:1]
    else:
        assert len(engine.prompts) == 1
        assert kinds(trajectory.segments[0]) == "PA"


async def test_summaries_and_turns_have_seeds_of_their_own() -> None:
    settings = compact(reserve_tokens=40, keep_pairs=0)
    limit = len(PROMPT) + len(PAIR) + 39
    _, engine = await play(Echo(), [LOOK, NOTE, DONE], context_length=limit, compaction=settings)
    assert len({request.seed for request in engine.requests}) == 3


# Rewritten history


async def test_a_request_reads_the_context_as_it_is_and_a_question_still_forks() -> None:
    """T2, ``rerender``: reasoning stays in sight of the summary; a user's message before it drops it, as ever."""
    chat = Chat(TOKENIZER, "glm47", thinking=True, history="rerender")
    think = [*TOKENIZER.encode("alpha"), END_THINK]
    call = [*think, *LOOK]

    class Asking(Echo):
        async def step(self, reply: Message) -> Step:
            step = await super().step(reply)
            return step if step.terminated or self.steps < 3 else Step((user("Are you sure?"),))

    def script(prompt: Sequence[int], session: str, turn: int) -> list[int]:
        asked = list(prompt[-len(request) :]) == request
        return [*think, *NOTE, USER] if asked else [*think, *DONE] if turn == 4 else call

    request = chat.delta([user("Sum up.")], last_id=-1)
    opening = chat.opening([user("task 0")], [Echo.tools[0].spec])
    reply = chat.delta([Message("tool", "nothing here")], last_id=LOOK[-1])
    limit = len(opening) + 2 * len(call) + 2 * len(reply) + 50
    settings = compact(reserve_tokens=51, keep_pairs=2, max_compactions=1, max_summary_tokens=20)
    trajectory, engine = await play(Asking(), script, chat=chat, context_length=limit, compaction=settings)
    assert [segment.ended_by for segment in trajectory.segments[:2]] == [SegmentEnd.COMPACTED, SegmentEnd.FORKED]
    # The request: nothing before it changed.
    assert engine.prompts[2] == [*opening, *call, *reply, *call, *reply[:-2], *request]
    before, after = chat.opening_around("{summary}", [user("task 0"), user("So far: {summary}")], [Echo.tools[0].spec])
    assert engine.prompts[3] == [*before, *NOTE, *after, *call, *reply]
    # The question: all reasoning goes, that of the carried turn too; the summary and its text stay.
    bare = [END_THINK, *LOOK]
    question = chat.delta([user("Are you sure?")], last_id=LOOK[-1])
    assert engine.prompts[4] == [*before, *NOTE, *after[:-1], *bare, *reply[:-1], *bare, *question]
    assert kinds(trajectory.segments[2]) == "PCPCCPCOA"
    assert list(trajectory_problems(trajectory, None)) == []
    assert_all_tokens_are_accounted_for(trajectory, engine)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("dialect", ["glm45", "glm47"])
def test_a_resumed_prompt_reads_as_the_template_would_write_it(dialect: DialectName, thinking: bool) -> None:
    chat = Chat(TOKENIZER, dialect, thinking=thinking)
    messages = [system("Be brief."), user("What is x?")]
    before, after = chat.opening_around("@", [*messages, user("So far: @.")], [Echo.tools[0].spec])
    text = chat.opening_text([*messages, user("So far: it is 3.")], [Echo.tools[0].spec])
    assert TOKENIZER.decode([*before, *TOKENIZER.encode("it is 3"), *after]) == text
    # What the rollout puts together is what one delta would have said.
    reply = [Message("tool", "nothing here")]
    asked = chat.delta([user("Sum up.")], last_id=-1)
    whole = chat.delta([*reply, user("Sum up.")], last_id=-1)
    assert [*chat.delta(reply, last_id=-1)[: -len(chat.generation_prompt)], *asked] == whole
    for held in ("none", "@ and @"):
        with pytest.raises(ValueError, match="must hold it once"):
            chat.opening_around("@", [user(held)])


# Settings


@pytest.mark.parametrize("resume", ["no slot", "{summary} and {summary}", ""])
def test_the_text_that_resumes_has_one_place_for_the_summary(resume: str) -> None:
    with pytest.raises(ConfigError, match=r"resume = .*must hold \{summary\} exactly once"):
        parse_settings(CompactionSettings, {"resume": resume}, where="recipe [compaction]")


def test_the_reserve_holds_request_and_summary_and_fits_into_the_context() -> None:
    engine = NotedEngine([], context_length=100)
    least = QUESTION + 50
    House(engine, CHAT, None, compaction=compact(reserve_tokens=least, max_summary_tokens=50))
    with pytest.raises(ConfigError, match=rf"must hold the request \({QUESTION} tokens\) and a summary .*, {least} in"):
        House(engine, CHAT, None, compaction=compact(reserve_tokens=least - 1, max_summary_tokens=50))
    House(engine, CHAT, None, Budget(max_context_tokens=61), compaction=compact(reserve_tokens=60))
    with pytest.raises(ConfigError, match="reserve_tokens = 61: must be less than the context of 61 tokens"):
        House(engine, CHAT, None, Budget(max_context_tokens=61), compaction=compact(reserve_tokens=61))


async def test_the_record_names_its_compaction_and_is_stored_bit_for_bit() -> None:
    settings = compact(reserve_tokens=40, keep_pairs=0)
    limit = len(PROMPT) + len(PAIR) + 39
    trajectory, _ = await play(Echo(), [LOOK, NOTE, DONE], context_length=limit, compaction=settings)
    assert trajectory.provenance.compaction == settings.model_dump()
    again = decode(trajectory.id, encode(trajectory))
    assert again.provenance == trajectory.provenance
    assert [kinds(segment) for segment in again.segments] == ["PAOS", "PCPA"]
    plain, _ = await play(Echo(), [DONE])
    assert plain.provenance.compaction == {}


# Laws


def one_rollout(
    seed: int, chat: Chat, settings: CompactionSettings, limit: int, length: int
) -> tuple[Trajectory, NotedEngine]:
    """Random turns (empty, cut, with and without reasoning) against random observations of tools and users."""
    rng = random.Random(seed)
    letters = [X, Y, Z, W, THINK, END_THINK, ASSISTANT]

    class Random(Scene):
        async def step(self, reply: Message) -> Step:
            self.steps += 1
            if self.steps == length:
                return Step(terminated=True)
            words = "w " * rng.randrange(limit // 3)
            tool = Message("tool", words, tool_call_id="call_0")
            return Step(rng.choice([(tool,), (tool,), (user(words),), (tool, user("v"))]))

    def script(prompt: Sequence[int], session: str, turn: int) -> list[int]:
        return [*rng.choices(letters, [9, 9, 9, 9, 1, 3, 1], k=rng.randrange(12)), rng.choice([*chat.stop_ids])]

    engine = NotedEngine(
        script,
        context_length=limit,
        fault=lambda session, turn: Fault.STRIPPED_STOP if rng.random() < 0.2 else None,
    )
    env = Random([system("s"), user("u")])
    spec = spec_of(lambda: env, max_turns=99)
    job = Job("t1", spec.tasks.task("train", 0), spec, seed=seed)
    house = House(engine, chat, None, Budget(max_turn_tokens=10, max_sampled_tokens=300), compaction=settings)
    return asyncio.run(run_trajectory(job, house)), engine


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dialect=st.sampled_from(["glm45", "glm47"]),
    thinking=st.booleans(),
    history=st.sampled_from(["preserve", "rerender"]),
    k=st.sampled_from([0, 1, 2, 4]),
    most=st.integers(1, 4),
    keep_task=st.booleans(),
    limit=st.integers(90, 240),
    length=st.sampled_from([1, 25]),
)
def test_whatever_happens_each_sampled_token_is_trained_once(
    seed: int, dialect: DialectName, thinking: bool, history: History, k: int, most: int, keep_task: bool,
    limit: int, length: int,
) -> None:  # fmt: skip
    """Invariants 14 and 17: tokens trained are tokens sampled, and a turn is never parted from its observation."""
    chat = Chat(TOKENIZER, dialect, thinking=thinking, history=history)
    compaction = compact(
        reserve_tokens=36, keep_pairs=k, max_compactions=most, max_summary_tokens=8, keep_task=keep_task
    )
    trajectory, engine = one_rollout(seed, chat, compaction, limit, length)
    assert trajectory.outcome.is_valid, trajectory.outcome
    assert_all_tokens_are_accounted_for(trajectory, engine)
    assert list(trajectory_problems(trajectory, None)) == []
    assert max(map(len, trajectory.segments)) <= limit
    compacted = [s for s in trajectory.segments if s.ended_by is SegmentEnd.COMPACTED]
    assert len(compacted) <= most
    asked = 0
    for before, segment in pairwise([None, *trajectory.segments]):
        text = kinds(segment)
        if before is not None and before.ended_by is SegmentEnd.COMPACTED:
            head = re.match(rf"PC?P((?:C?C?P){{0,{k}}})", text)  # whole pairs, at most k of them
            assert head is not None
            written = [span for span in segment.spans[3 : head.end()] if span.kind is SpanKind.PROMPT]
            assert all(span.token_ids[0] == ASSISTANT for span in written)
            prompt = sum(map(len, segment.spans[: head.end()]))
            assert not must_compact(limit, prompt, compaction.reserve_tokens)
        used = 0
        for span, after in pairwise([*segment.spans, None]):
            used += len(span)
            assert not (span.kind is SpanKind.ACTION and after is not None and after.kind is not SpanKind.OBSERVATION)
            if span.kind is SpanKind.OBSERVATION and asked < most:
                is_request = after is None or after.kind is SpanKind.SUMMARY
                if not is_request and after.kind is SpanKind.ACTION:
                    assert not must_compact(limit, used, compaction.reserve_tokens)
        asked += segment.ended_by is SegmentEnd.COMPACTED

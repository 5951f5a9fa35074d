"""Laws of one trajectory's tokens: what was sampled is kept, trained once, and is what the engine sees next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from episodes import CHAT, DONE, LOOK, TOKENIZER, Echo, assert_all_tokens_are_accounted_for, play
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from glmgym.chat import Chat, DialectName, History, Mark, Tokenizer
from glmgym.engines import Fault
from glmgym.env import Step
from glmgym.messages import Message, ToolCall, assistant, user
from glmgym.rollout import Budget, job_seed
from glmgym.tool import tool
from glmgym.trajectory import SegmentEnd, SpanKind, Stop

OBSERVATION = TOKENIZER.id_of("<|observation|>")


# T1: decoding and encoding again is not the identity


class SpyTokenizer(Tokenizer):
    """Bytes, the pieces he, ll, llo and hello, and GLM's marks. Notes what it encodes and refuses assistant text."""

    def __init__(self) -> None:
        vocab = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
        vocab |= {a + b: len(vocab) + i for i, (a, b) in enumerate(merges)}
        raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.decoder = decoders.ByteLevel()
        raw.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in Mark])
        super().__init__(raw)
        self.id_of_piece = vocab
        self.encoded = 0  # characters so far
        self.forbidden = ""

    def encode(self, text: str) -> list[int]:
        assert not (self.forbidden and self.forbidden in text), f"assistant text was encoded: {text!r}"
        self.encoded += len(text)
        return super().encode(text)


async def test_sampled_ids_return_verbatim_and_only_new_text_is_encoded() -> None:
    """T1: [he, llo] stays [he, llo], though ``encode`` says [hello]; each of 64 turns encodes its 50 characters."""
    spy = SpyTokenizer()
    chat = Chat(spy, "glm47", thinking=False)
    he, llo, hello = (spy.id_of_piece[piece] for piece in ("he", "llo", "hello"))
    assert spy.encode("hello") == [hello]
    turn = chat.turn(assistant("hello", ToolCall("call_0", "look", {"where": "there"})))
    at = turn.index(hello)
    drifted = [*turn[:at], he, llo, *turn[at + 1 :]]

    encoded: list[int] = []

    class FiftyCharacters(Echo):
        async def step(self, reply: Message) -> Step:
            assert reply.content == "hello"
            encoded.append(spy.encoded)
            return Step((Message("tool", f"{len(encoded):02d}{'x' * 48}"),), truncated=len(encoded) == 64)

    spy.forbidden = "hello"
    trajectory, engine = await play(FiftyCharacters(), [drifted] * 64, chat=chat, max_turns=99, context_length=10_000)
    assert trajectory.num_turns == 64
    assert_all_tokens_are_accounted_for(trajectory, engine)
    for earlier, later in pairwise(engine.prompts):
        assert later[: len(earlier) + len(drifted)] == [*earlier, *drifted]
    assert hello not in engine.prompts[-1]
    assert {after - before for before, after in pairwise(encoded)} == {50}


# T2: a user message rewrites history, or does not


class SecondQuestion(Echo):
    """The first answer is met with another question."""

    asked = False

    async def step(self, reply: Message) -> Step:
        if reply.tool_calls or self.asked:
            return await super().step(reply)
        self.asked = True
        return Step((user("Are you sure?"),))


@pytest.mark.parametrize("dialect", ["glm45", "glm47"])
@pytest.mark.parametrize("history", ["preserve", "rerender"])
async def test_a_user_turn_forks_exactly_where_history_is_rewritten(dialect: DialectName, history: History) -> None:
    """T2: assistant, tool, assistant, user, assistant."""
    chat = Chat(TOKENIZER, dialect, thinking=True, history=history)
    call = ToolCall("call_0", "look", {"where": "here"})
    turns = [
        assistant("", call, reasoning="alpha"),
        assistant("done", reasoning="beta"),
        assistant("done", reasoning="c"),
    ]
    trajectory, engine = await play(SecondQuestion(), [chat.turn(turn) for turn in turns], chat=chat)
    assert trajectory.outcome.total() == 1.0
    assert_all_tokens_are_accounted_for(trajectory, engine)
    before_last_turn = TOKENIZER.decode(engine.prompts[2])
    if history == "preserve":
        assert [segment.num_turns for segment in trajectory.segments] == [3]
        assert engine.prompts[2][: len(engine.prompts[1])] == engine.prompts[1]
        assert "alpha" in before_last_turn
    else:
        assert [segment.num_turns for segment in trajectory.segments] == [2, 1]
        assert [segment.ended_by for segment in trajectory.segments] == [SegmentEnd.FORKED, SegmentEnd.END]
        kinds = [span.kind for span in trajectory.segments[1].spans]
        observation, carried = SpanKind.OBSERVATION, SpanKind.CARRIED
        assert kinds == [SpanKind.PROMPT, carried, observation, carried, observation, SpanKind.ACTION]
        assert "alpha" not in before_last_turn
        assert "beta" not in before_last_turn
        assert "Are you sure?" not in TOKENIZER.decode(trajectory.segments[0].token_ids.tolist())


async def test_a_fork_counts_the_context_after_the_collapse() -> None:
    """T2: 200 words of reasoning are dropped by the user turn, so the new context has room again."""
    chat = Chat(TOKENIZER, "glm47", thinking=True, history="rerender")
    turns = [chat.turn(assistant("done", reasoning="word " * 200)), chat.turn(assistant("done", reasoning="x"))]
    limit = len(chat.opening([user("task 0")], [Echo.tools[0].spec])) + len(turns[0]) + 1
    trajectory, engine = await play(
        SecondQuestion(), turns, chat=chat, budget=Budget(max_turn_tokens=999), context_length=limit
    )
    assert trajectory.outcome.stop is Stop.DONE
    assert [segment.num_turns for segment in trajectory.segments] == [1, 1]
    assert_all_tokens_are_accounted_for(trajectory, engine)


# T3: the role marker that ends a turn


@pytest.mark.parametrize("stripped", [False, True])
async def test_the_marker_is_sampled_once_or_inserted_once(stripped: bool) -> None:
    """T3: after [..., OBS] the context holds one OBS, sampled; where the engine stripped it, one OBS, unsampled."""
    fault = Fault.STRIPPED_STOP if stripped else None
    trajectory, engine = await play(Echo(), [LOOK, DONE], fault=lambda session, turn: None if turn else fault)
    (segment,) = trajectory.segments
    places = np.flatnonzero(segment.token_ids == OBSERVATION)
    assert len(places) == 1
    assert places[0] == len(engine.prompts[0]) + len(LOOK) - 1
    assert segment.sampled_mask[places[0]] == (not stripped)
    assert engine.prompts[1].count(OBSERVATION) == 1
    assert_all_tokens_are_accounted_for(trajectory, engine)


# T5, T6: what an environment makes of calls


@tool
async def run(cmd: str, opts: dict[str, int] | None = None) -> str:
    """Run a command."""
    return f"ran {cmd} {opts}"


class Shell(Echo):
    tools = (run,)


class OwnNames(Shell):
    """Answers with call ids of its own."""

    async def step(self, reply: Message) -> Step:
        step = await super().step(reply)
        renamed = (Message("tool", m.content, tool_call_id=f"other-{i}") for i, m in enumerate(step.observation))
        return Step(tuple(renamed), step.terminated)


async def test_the_harness_cannot_reserialise_a_sampled_call() -> None:
    """T5: ``{"b":1,"a":2}`` was sampled and stays; new call ids neither fork nor change a token."""
    turn = CHAT.turn(assistant("", ToolCall("x", "run", {"cmd": "ls", "opts": '{"b":1,"a":2}'})))
    plain, engine = await play(Shell(), [turn, DONE])
    renamed, other = await play(OwnNames(), [turn, DONE])
    assert other.prompts == engine.prompts
    assert len(renamed.segments) == len(plain.segments) == 1
    assert engine.prompts[1][: len(engine.prompts[0]) + len(turn)] == [*engine.prompts[0], *turn]
    assert TOKENIZER.decode(engine.prompts[1]).count('{"b":1,"a":2}') == 1
    assert '"a": 2' not in TOKENIZER.decode(engine.prompts[1])
    assert_all_tokens_are_accounted_for(renamed, other)


def calls(*raw: tuple[str, Mapping[str, str]]) -> list[int]:
    """A turn of calls whose argument texts are written as they stand."""
    return CHAT.turn(assistant("", *(ToolCall(f"call_{i}", name, values) for i, (name, values) in enumerate(raw))))


GOOD = ("run", {"cmd": "ls"})
UNCLOSED = [i for i in calls(GOOD) if i != TOKENIZER.id_of("</tool_call>")]


@pytest.mark.parametrize(
    ("turn", "is_error"),
    [
        (calls(("run", {"cmd": "ls", "opts": '{"cmd": "ls"'})), [True]),
        (calls(("run", {"cmd": "ls", "opts": ""})), [True]),
        (calls(("run", {"cmd": "ls", "opts": "null"})), [True]),
        (calls(("run", {"cmd": "ls", "opts": "[]"})), [True]),
        (calls(("run", {"cmd": "ls", "opts": '"str"'})), [True]),
        (calls(("run", {"cmd": "ls", "opts": '{"a": "no number"}'})), [True]),
        (calls(("run", {})), [True]),
        (calls(("rum", {"cmd": "ls"})), [True]),
        (calls(GOOD, ("run", {"opts": "{}"})), [False, True]),
        (calls(("rum", {}), GOOD), [True, False]),
        (UNCLOSED, [True]),
        (calls(GOOD), [False]),
    ],
)
async def test_a_malformed_call_is_answered_and_the_loop_goes_on(turn: list[int], is_error: Sequence[bool]) -> None:
    """T6: each call is answered under its own id, a bad one with an error; the outcome is the policy's, trainable."""
    env = Shell()
    trajectory, engine = await play(env, [turn, DONE])
    answers = [message for message in env.seen if message.role == "tool"]
    assert [answer.tool_call_id for answer in answers] == [f"call_{i}" for i in range(len(is_error))]
    assert [answer.content.startswith("error: ") for answer in answers] == list(is_error)
    assert all(answer.content == "ran ls None" for answer in answers if not answer.content.startswith("error: "))
    assert trajectory.outcome.stop is Stop.DONE
    assert trajectory.outcome.total() == 1.0
    assert_all_tokens_are_accounted_for(trajectory, engine)


# T7, P4: counts


@pytest.mark.parametrize("cap", [3, len(LOOK) - 1, len(LOOK), len(LOOK) + 1])
async def test_a_turn_cut_by_its_cap_trains_every_sampled_token(cap: int) -> None:
    """T7: 5 turns of at most ``cap`` tokens are 5 * min(cap, len) sampled and as many trained; the play goes on."""
    trajectory, engine = await play(Echo(), [LOOK] * 5, budget=Budget(max_turn_tokens=cap, max_turns=5))
    assert trajectory.num_turns == 5
    assert trajectory.num_sampled == 5 * min(cap, len(LOOK))
    assert_all_tokens_are_accounted_for(trajectory, engine)


async def test_one_log_prob_too_many_fails_the_trajectory() -> None:
    """P4: 208 log-probs for 207 tokens are the engine's failure, with the counts, and none of the turn is recorded."""
    turn = [*([TOKENIZER.encode("a")[0]] * 206), OBSERVATION]
    trajectory, _ = await play(
        Echo(), [LOOK, turn], fault=lambda session, turn: Fault.EXTRA_LOGPROB if turn == 1 else None
    )
    failure = trajectory.outcome.failure
    assert failure is not None
    assert (failure.origin, failure.type, failure.retryable) == ("engine", "CaptureError", False)
    assert "207 token ids came with 208 log-probs" in failure.message
    assert trajectory.id == "t1"
    assert trajectory.outcome.rewards == ()
    assert trajectory.num_sampled == len(LOOK)


# Seeds


async def test_every_turn_has_a_seed_of_its_own_and_the_same_job_has_the_same_seeds() -> None:
    _, first = await play(Echo(), [LOOK, LOOK, DONE])
    _, second = await play(Echo(), [LOOK, LOOK, DONE])
    seeds = [request.seed for request in first.requests]
    assert len(set(seeds)) == 3
    assert seeds == [request.seed for request in second.requests]
    assert all(request.stop_token_ids == CHAT.stop_ids for request in first.requests)


def test_job_seeds_are_the_same_in_every_process() -> None:
    """Pinned: a digest, not ``hash``. 63 bits, so that every engine's signed seed holds them."""
    assert job_seed(0, "t00000001") == 1392044731637914341
    assert len({job_seed(run, name) for run in range(10) for name in ("a", "b", "c")}) == 30
    assert all(0 <= job_seed(run, "a") < 2**63 for run in range(100))

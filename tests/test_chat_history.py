"""Laws of the context: what was sampled stays as it was sampled, and the rest equals the reference template."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from glmgym.chat import Chat, DialectName, Mark, Tokenizer, apply_template
from glmgym.errors import CaptureError
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from glmgym.trajectory import Segment, SegmentEnd, Span, SpanKind
from glmgym_trainers.make_tokenizer import DEFAULT_TEXTS, DEFAULT_WORDS, train_tokenizer

RAW = train_tokenizer([*DEFAULT_TEXTS, "\n\n " * 99], 512, DEFAULT_WORDS)  # two line breaks in a row are one token
TOKENIZER = Tokenizer(RAW)
TEMPLATES = {name: Path(__file__).parent.joinpath(f"data/chat/{name}.jinja").read_text() for name in ("glm45", "glm47")}
RUN = ToolSpec("run", "Run a command.", {"type": "object", "properties": {"cmd": {"type": "string"}, "opts": {}}})
OBSERVATION, USER = TOKENIZER.id_of("<|observation|>"), TOKENIZER.id_of("<|user|>")

DIALECTS = pytest.mark.parametrize("dialect", ["glm45", "glm47"])
THINKING = pytest.mark.parametrize("thinking", [True, False])


def sampled_span(ids: Sequence[int], num_logprobs: int | None = None) -> Span:
    n = len(ids)
    logprobs = np.full(n if num_logprobs is None else num_logprobs, -0.5, np.float32)
    return Span(SpanKind.ACTION, np.array(ids, np.int32), logprobs, np.zeros(n, np.int32))


class Context:
    """What a rollout does with a chat: spans of the open segment, closed segments, every prompt an engine received."""

    def __init__(self, chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> None:
        self.chat = chat
        self.spans = [Span(SpanKind.PROMPT, np.array(chat.opening(messages, tools), np.int32))]
        self.closed: list[Segment] = []
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    @property
    def ids(self) -> list[int]:
        return [int(i) for span in self.spans for i in span.token_ids]

    def sample(self, ids: Sequence[int]) -> None:
        self.prompts.append(self.ids)
        self.sampled.append(list(ids))
        self.spans.append(sampled_span(ids))

    def observe(self, *messages: Message) -> None:
        last_id = int(self.spans[-1].token_ids[-1])
        if self.chat.must_fork(messages):
            self.closed.append(Segment(tuple(self.spans), SegmentEnd.FORKED))
            self.spans = list(self.chat.collapse(self.spans))
        self.spans.append(Span(SpanKind.OBSERVATION, np.array(self.chat.delta(messages, last_id=last_id), np.int32)))

    def segments(self) -> list[Segment]:
        return [*self.closed, Segment(tuple(self.spans))]


def script(*, thinking: bool) -> list[list[Message]]:
    """Opening, then alternating turns and what follows them: two calls at once, a call without words, a second user."""

    def why(text: str) -> str | None:
        return text if thinking else None

    first = ToolCall("call_0", "run", {"cmd": "grep -c 'é' a.txt", "opts": {"b": [1, 2.5, None], "a": "ß"}})
    second = ToolCall("call_1", "run", {"cmd": '{"looks": "like JSON"}', "opts": True})
    third = ToolCall("call_0", "run", {"cmd": "cat a.txt | head\nls"})
    return [
        [system("Work in a shell."), user("How many lines hold an é?")],
        [assistant("Let me look.", first, second, reasoning=why("count\nthem"))],
        [tool_result(first, "3\n"), tool_result(second, "sh: not found")],
        [assistant("", third, reasoning=why("check once more"))],
        [tool_result(third, "")],
        [assistant("There are 3.", reasoning=why("done"))],
        [user("Are you sure?")],
        [assistant("Yes, 3.", reasoning=why("sure"))],
    ]


def reference_ids(
    dialect: str, messages: Sequence[Message], *, thinking: bool, clear: bool, generate: bool
) -> list[int]:
    judge = PreTrainedTokenizerFast(tokenizer_object=RAW, chat_template=TEMPLATES[dialect])
    ids = judge.apply_chat_template(
        [message.to_openai() for message in messages],
        tools=[RUN.to_openai()],
        add_generation_prompt=generate,
        enable_thinking=thinking,
        clear_thinking=clear,
        return_dict=False,
    )
    assert all(isinstance(i, int) for i in ids)
    return list(ids)


@DIALECTS
@THINKING
@pytest.mark.parametrize("history", ["preserve", "rerender"])
def test_every_prompt_equals_the_reference_template(dialect: DialectName, thinking: bool, history: str) -> None:
    """Golden: opening + turns + deltas are, id by id, what ``apply_chat_template`` makes of the same messages."""
    steps = script(thinking=thinking)
    if dialect == "glm45" and thinking and history == "preserve":
        steps = steps[:6]  # the 4.5 template cannot keep reasoning once a second user message is there
    context = Context(Chat(TOKENIZER, dialect, thinking=thinking, history=history), steps[0], [RUN])  # type: ignore[arg-type]
    said = list(steps[0])
    clear = history == "rerender"
    assert context.ids == reference_ids(dialect, said, thinking=thinking, clear=clear, generate=True)
    for step in steps[1:]:
        said += step
        if step[0].role == "assistant":
            context.sample(context.chat.turn(step[0]))
            complete = reference_ids(dialect, said, thinking=thinking, clear=clear, generate=False)
            assert context.ids == [*complete, OBSERVATION if step[0].tool_calls else USER]
        else:
            context.observe(*step)
            assert context.ids == reference_ids(dialect, said, thinking=thinking, clear=clear, generate=True)


@DIALECTS
@THINKING
def test_an_opening_may_hold_earlier_assistant_turns(dialect: DialectName, thinking: bool) -> None:
    """Golden: worked examples in an opening lose their reasoning where the template drops it."""
    messages = [message for step in script(thinking=thinking)[:-1] for message in step]
    chat = Chat(TOKENIZER, dialect, thinking=thinking, history="rerender")
    assert chat.opening(messages, [RUN]) == reference_ids(
        dialect, messages, thinking=thinking, clear=True, generate=True
    )


@DIALECTS
def test_a_demonstration_is_stripped_as_the_template_strips(dialect: DialectName) -> None:
    """Golden: whitespace around reasoning and content goes, that inside a user's or a tool's text stays."""
    chat = Chat(TOKENIZER, dialect, thinking=True)
    opening, reply = [user(" two\n\n")], assistant("\n yes \n", reasoning=" why\n\n")
    ids = [*chat.opening(opening, [RUN]), *chat.turn(reply)]
    expected = reference_ids(dialect, [*opening, reply], thinking=True, clear=False, generate=False)
    assert ids == [*expected, USER]


@DIALECTS
@THINKING
def test_our_jinja_renders_as_transformers_does(dialect: DialectName, thinking: bool) -> None:
    messages = [message for step in script(thinking=thinking) for message in step]
    flags = {"enable_thinking": thinking, "clear_thinking": True, "add_generation_prompt": False}
    text = apply_template(TEMPLATES[dialect], messages, [RUN], **flags)
    assert RAW.encode(text).ids == reference_ids(dialect, messages, thinking=thinking, clear=True, generate=False)


@DIALECTS
@THINKING
def test_a_turn_reads_back_as_the_message_it_says(dialect: DialectName, thinking: bool) -> None:
    chat = Chat(TOKENIZER, dialect, thinking=thinking)
    for step in script(thinking=thinking):
        if step[0].role == "assistant":
            ids = chat.turn(step[0])
            assert chat.parse(ids, [RUN]) == step[0]
            assert chat.parse(ids[:-1], [RUN]) == step[0]  # an engine that strips the stop token changes nothing


def toy_tokenizer() -> RawTokenizer:
    """Bytes, the pieces he, ll, llo, hello, and GLM's marks."""
    vocab = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    vocab |= {a + b: len(vocab) + i for i, (a, b) in enumerate(merges)}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in Mark])
    return raw


class SpyTokenizer(Tokenizer):
    """Remembers what it was asked to encode."""

    def __init__(self, raw: RawTokenizer) -> None:
        super().__init__(raw)
        self.seen: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.seen.append(text)
        return super().encode(text)


@DIALECTS
@THINKING
def test_sampled_ids_stay_and_only_new_text_is_encoded(dialect: DialectName, thinking: bool) -> None:
    """T1: the policy says he|llo where the tokenizer says hello; 64 turns later both are still there, unencoded."""
    spy = SpyTokenizer(toy_tokenizer())
    (hello,) = spy.encode("hello")
    he, llo = spy.encode("he")[0], spy.encode("llo")[0]
    assert spy.decode([he, llo]) == "hello"
    context = Context(Chat(spy, dialect, thinking=thinking), [user("say it " * 10)])
    spy.seen.clear()
    per_turn = []
    for turn in range(64):
        context.sample([he, llo, spy.id_of("<|observation|>")])
        context.observe(tool_result(ToolCall("call_0", "run"), f"result {turn:04d} " * 40))
        per_turn.append(sum(map(len, spy.seen)))
        assert not any("hello" in text for text in spy.seen)
        spy.seen.clear()
    assert max(per_turn) <= 40 * len("result 0000 ") + len("\n\n\n\n")
    assert per_turn[63] == per_turn[7]
    ids = context.ids
    assert sum(a == he and b == llo for a, b in pairwise(ids)) == 64
    assert hello not in ids


@pytest.mark.parametrize(("history", "num_segments"), [("preserve", 1), ("rerender", 2)])
@DIALECTS
def test_a_user_message_forks_only_the_rewriting_history(dialect: DialectName, history: str, num_segments: int) -> None:
    """T2: assistant, tool, assistant, user, assistant."""
    opening, *steps = script(thinking=True)
    context = Context(Chat(TOKENIZER, dialect, thinking=True, history=history), opening)  # type: ignore[arg-type]
    for step in steps:
        if step[0].role == "assistant":
            context.sample(context.chat.turn(step[0]))
        else:
            context.observe(*step)
            assert len(context.closed) == (step[0].role == "user" and num_segments - 1)
    segments = context.segments()
    assert len(segments) == num_segments
    # Every sampled token is trained exactly once, in the order of sampling.
    trained = [int(i) for segment in segments for i in segment.token_ids[segment.sampled_mask]]
    assert trained == [i for ids in context.sampled for i in ids]
    # What stands before each trained turn is what the engine received.
    before = []
    for segment in segments:
        for n, span in enumerate(segment.spans):
            if span.kind is SpanKind.ACTION:
                before.append([int(i) for earlier in segment.spans[:n] for i in earlier.token_ids])
    assert before == context.prompts


@DIALECTS
def test_collapse_cuts_reasoning_and_nothing_else(dialect: DialectName) -> None:
    """T2: ids that no re-encoding would produce survive; a turn cut in mid-thought is closed; twice is once."""
    tokenizer = Tokenizer(toy_tokenizer())
    chat = Chat(tokenizer, dialect, thinking=True, history="rerender")
    he, llo, x = tokenizer.encode("he")[0], tokenizer.encode("llo")[0], tokenizer.encode("x")[0]
    think, end, stop = (tokenizer.id_of(mark) for mark in ("<think>", "</think>", "<|user|>"))
    opens = [] if dialect == "glm47" else [think]
    context = Context(chat, [user("u")])
    context.sample([*opens, x, x, end, he, llo, stop])
    context.observe(user("v"))
    context.sample([*opens, x, x, x])  # length ran out
    context.observe(user("w"))
    context.sample([*opens, x, stop])  # gave up thinking
    collapsed = chat.collapse(context.spans)
    assert [span.kind for span in collapsed[1::2]] == [SpanKind.CARRIED] * 3
    assert collapsed[1].token_ids.tolist() == [*opens, end, he, llo, stop]
    assert collapsed[3].token_ids.tolist() == [*opens, end]
    assert all(span.token_ids[-1] == tokenizer.id_of("<|assistant|>") for span in (collapsed[0], collapsed[2]))
    assert collapsed[5].token_ids.tolist() == [*opens, end, stop]
    again = chat.collapse(collapsed)
    assert [span.token_ids.tolist() for span in again] == [span.token_ids.tolist() for span in collapsed]


def test_only_reasoning_can_force_a_fork() -> None:
    """T2: no fork on tool results, none with thinking off, none when history is preserved."""
    rerender = Chat(TOKENIZER, thinking=True, history="rerender")
    result = tool_result(ToolCall("call_0", "run"), "x")
    assert rerender.must_fork([result, user("u")])
    assert not rerender.must_fork([result])
    assert not Chat(TOKENIZER, thinking=False, history="rerender").must_fork([user("u")])
    assert not Chat(TOKENIZER, thinking=True).must_fork([user("u")])


@DIALECTS
@pytest.mark.parametrize(
    ("marker", "message"), [(OBSERVATION, tool_result(ToolCall("c", "run"), "r")), (USER, user("u"))]
)
@pytest.mark.parametrize("stripped", [False, True])
def test_a_role_marker_stands_once(dialect: DialectName, marker: int, message: Message, stripped: bool) -> None:
    """T3: sampled as the turn's last token it is trained and not rendered again; stripped, it is inserted unsampled."""
    context = Context(Chat(TOKENIZER, dialect, thinking=True), [system("no such marker here")])
    start = len(context.ids)
    context.sample([10, 11] if stripped else [10, 11, marker])
    context.observe(message)
    segment = context.segments()[0]
    assert segment.token_ids[start : start + 3].tolist() == [10, 11, marker]
    assert segment.sampled_mask[start : start + 3].tolist() == [True, True, not stripped]
    assert (segment.token_ids == marker).sum() == 1


def test_a_wrong_marker_is_kept_and_the_right_one_follows() -> None:
    """T3: a policy that ends a turn with the other marker keeps its sampled token."""
    chat = Chat(TOKENIZER, thinking=True)
    result = tool_result(ToolCall("c", "run"), "r")
    assert chat.delta([result], last_id=USER)[0] == OBSERVATION
    assert chat.delta([result], last_id=TOKENIZER.id_of("<|endoftext|>"))[0] == OBSERVATION
    assert chat.delta([user("u")], last_id=OBSERVATION)[0] == USER


def test_reserialised_arguments_change_no_history() -> None:
    """T5: the echo ``{"b": 1, "a": 2}`` of a sampled ``{"b":1,"a":2}`` has other ids; the context keeps the sampled."""
    chat = Chat(TOKENIZER, thinking=False)
    marks = {mark: TOKENIZER.id_of(mark) for mark in Mark}
    value = TOKENIZER.encode('{"b":1,"a":2}')
    head = [marks[Mark.CALL], *TOKENIZER.encode("run"), marks[Mark.KEY], *TOKENIZER.encode("opts"), marks[Mark.END_KEY]]
    ids = [*head, marks[Mark.VALUE], *value, marks[Mark.END_VALUE], marks[Mark.END_CALL], OBSERVATION]
    context = Context(chat, [user("u")], [RUN])
    context.sample(ids)
    reply = chat.parse(ids, [RUN])
    assert reply.tool_calls == (ToolCall("call_0", "run", {"opts": {"b": 1, "a": 2}}),)
    assert chat.turn(reply) != ids  # rendering it again would break the prefix
    echoed = ToolCall("chatcmpl-77", "run", {"opts": {"a": 2, "b": 1}})
    before = context.ids
    context.observe(tool_result(echoed, "ok"))
    assert context.ids[: len(before)] == before
    assert context.ids[len(before) :] == chat.delta([tool_result(reply.tool_calls[0], "ok")], last_id=OBSERVATION)
    assert len(context.segments()) == 1


@DIALECTS
@THINKING
@pytest.mark.parametrize("cap", [1, 2, 3, 5, 8, 13, 1000])
def test_a_cut_turn_trains_exactly_what_was_sampled(dialect: DialectName, thinking: bool, cap: int) -> None:
    """T7: turns cut at a cap of ``cap`` tokens; the sums agree and every cut turn is followed by an inserted marker."""
    context = Context(Chat(TOKENIZER, dialect, thinking=thinking), [user("u")], [RUN])
    call = ToolCall("call_0", "run", {"cmd": "cat /data/a.txt"})
    whole = context.chat.turn(assistant("now", call, reasoning="so" if thinking else None))
    for _ in range(3):
        context.sample(whole[:cap])
        context.observe(tool_result(call, "r"))
    (segment,) = context.segments()
    assert segment.num_sampled == segment.sampled_mask.sum() == 3 * min(cap, len(whole))
    assert (segment.token_ids == OBSERVATION).sum() == 3
    assert (segment.token_ids[segment.sampled_mask] == OBSERVATION).sum() == (3 if cap >= len(whole) else 0)


def test_one_logprob_too_many_is_refused() -> None:
    """P4: 208 log-probs for 207 tokens."""
    with pytest.raises(CaptureError, match="207 token ids came with 208 log-probs"):
        sampled_span([5] * 207, num_logprobs=208)


def test_an_empty_delta_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Chat(TOKENIZER, thinking=True).delta([], last_id=5)

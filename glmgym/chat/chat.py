"""Chat, token in token out: messages become ids once, as deltas; sampled ids become messages and stay as they are.

Owned here: where ids and the wire format meet. No method takes a history, so no history can be encoded a second time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Literal

import numpy as np

from glmgym.chat import wire
from glmgym.chat.parsing import parse_message
from glmgym.chat.tokenizer import Tokenizer
from glmgym.chat.wire import DIALECTS, STOP_MARKS, DialectName, Mark, Part
from glmgym.errors import UnknownName
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from glmgym.trajectory import Span, SpanKind

History = Literal["preserve", "rerender"]

_MEMO_CHARS = 32  # texts up to this length are line breaks, tool names and argument keys: worth remembering
_MEMO_SIZE = 4096
_ANY_MARK = re.compile("(" + "|".join(re.escape(mark) for mark in Mark) + ")")


class Chat:
    """One policy's way of talking: a tokenizer, a dialect, thinking on or off.

    ``history="preserve"`` keeps every sampled token in the context. ``"rerender"`` drops earlier reasoning when a user
    message arrives, as the reference template does; a new segment then starts (``must_fork``, ``collapse``).

    Args:
        tools_text: the tool block in a checkpoint's own words; ours is used without it.

    Raises:
        ConfigError: the tokenizer lacks one of GLM's special tokens; unknown dialect.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: DialectName = "glm47",
        *,
        thinking: bool,
        history: History = "preserve",
        tools_text: Callable[[Sequence[ToolSpec]], str] | None = None,
    ) -> None:
        if dialect not in DIALECTS:
            raise UnknownName("dialect", dialect, DIALECTS)
        self.tokenizer = tokenizer
        self.dialect = DIALECTS[dialect]
        self.thinking = thinking
        self.history: History = history
        self._tools_text = tools_text
        self._id_of = {mark: tokenizer.id_of(mark) for mark in Mark}
        self._mark_of = {token_id: mark for mark, token_id in self._id_of.items()}
        self._encode_short = lru_cache(_MEMO_SIZE)(lambda text: tuple(tokenizer.encode(text)))
        self.stop_ids = frozenset(self._id_of[mark] for mark in STOP_MARKS)
        self.generation_prompt = tuple(self._encode(wire.generation_parts(self.dialect, thinking=thinking)))
        self.template_sha256 = self._fingerprint()

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The whole first prompt, generation prompt included."""
        return self._encode(self._opening_parts(messages, tools))

    def opening_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The text whose special tokens and plain runs ``opening`` encodes; for comparison with a chat template."""
        return "".join(self._opening_parts(messages, tools))

    def opening_around(
        self, slot: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[list[int], list[int]]:
        """The whole prompt in two halves, cut where ``slot`` stands in the last message: ids go in between as they are.

        Raises:
            ValueError: the last message does not hold ``slot`` exactly once.
        """
        text = messages[-1].content if messages else ""
        if text.count(slot) != 1:
            raise ValueError(f"the last message holds {slot!r} {text.count(slot)} times; it must hold it once")
        parts = self._opening_parts(messages, tools)
        at = len(parts) - 1 - parts[::-1].index(text)
        before, after = text.split(slot)
        return self._encode([*parts[:at], before]), self._encode([after, *parts[at + 1 :]])

    def delta(self, messages: Sequence[Message], *, last_id: int) -> list[int]:
        """What is appended after a sampled turn: the messages and the generation prompt.

        The role marker of the first message is left out exactly when the policy sampled it as its last token
        (``last_id``); it is inserted when the engine stripped it or the turn was cut.

        Raises:
            ValueError: no messages.
        """
        if not messages:
            raise ValueError("a delta needs at least one message")
        ids = self._encode(
            [
                *wire.message_parts(self.dialect, messages, thinking=self.thinking),
                *wire.generation_parts(self.dialect, thinking=self.thinking),
            ]
        )
        return ids[1:] if ids[0] == last_id else ids

    def parse(self, ids: Iterable[int], tools: Sequence[ToolSpec] = ()) -> Message:
        """The assistant message that sampled ids spell, with or without their ending marker.

        Never raises for what a policy wrote: a malformed call is a ``ToolCall`` whose ``error`` says what was wrong.
        """
        in_reasoning = self.thinking and self.dialect.opens_thinking
        return parse_message(self._parts_of(ids), tools, in_reasoning=in_reasoning)

    def words(self, ids: Sequence[int]) -> list[int]:
        """The ids of a sampled turn that are its content: one run, without reasoning and without the ending marker.

        It starts after the last ``</think>`` and ends before the next ``<think>`` or stop token. A turn that was cut in
        the middle of its reasoning has no content.
        """
        think, end = self._id_of[Mark.THINK], self._id_of[Mark.END_THINK]
        last = max((i for i, token_id in enumerate(ids) if token_id == end), default=-1)
        if last < 0 and self.thinking and self.dialect.opens_thinking:
            return []
        return list(takewhile(lambda token_id: token_id != think and token_id not in self.stop_ids, ids[last + 1 :]))

    def turn(self, message: Message) -> list[int]:
        """The ids a policy samples to say ``message``, ending with its role marker; no reasoning with thinking off."""
        return self._encode(wire.turn_parts(self.dialect, message, thinking=self.thinking))

    def must_fork(self, messages: Sequence[Message]) -> bool:
        """True when appending ``messages`` rewrites the context, so that the segment must end first (``collapse``)."""
        return self.history == "rerender" and self.thinking and any(message.role == "user" for message in messages)

    def collapse(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """A segment's spans as they look after a user message arrived: reasoning of every turn so far removed.

        Sampled ids other than reasoning are kept verbatim and marked CARRIED, since they were trained in the segment
        that ends; unsampled spans keep all but a ``<think>`` that the generation prompt had opened. A turn that was cut
        in the middle of its reasoning gets the ``</think>`` it never wrote. Collapsing twice changes nothing.
        """
        out: list[Span] = []
        think = self._id_of[Mark.THINK]
        for span in spans:
            if not (span.kind.is_sampled or span.kind is SpanKind.CARRIED):
                out.append(span)
                continue
            opened = bool(out) and int(out[-1].token_ids[-1]) == think
            if opened:
                out[-1] = Span(out[-1].kind, out[-1].token_ids[:-1])
            kept = self._without_reasoning(span.token_ids.tolist(), inside=opened)
            out.append(Span(SpanKind.CARRIED, np.array(kept, np.int32)))
        return tuple(out)

    def _without_reasoning(self, ids: Sequence[int], *, inside: bool) -> list[int]:
        think, end = self._id_of[Mark.THINK], self._id_of[Mark.END_THINK]
        kept: list[int] = []
        for token_id in ids:
            if inside and token_id in self.stop_ids:
                kept.append(end)
                inside = False
            if token_id == end or not inside:
                kept.append(token_id)
            if token_id in (think, end):
                inside = token_id == think
        return [*kept, end] if inside else kept

    def _opening_parts(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Part]:
        block = wire.tool_parts(self.dialect, tools)
        if tools and self._tools_text is not None:
            block = _split_marks(self._tools_text(tools))
        keep_all = self.history == "preserve"
        return wire.opening_parts(self.dialect, messages, block, thinking=self.thinking, keep_all=keep_all)

    def _encode(self, parts: Iterable[Part]) -> list[int]:
        """Ids of parts. Adjacent texts are joined first: a merge may span them, as it would in a template's output."""
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, Mark):
                ids += self._encode_text(text)
                ids.append(self._id_of[part])
                text = ""
            else:
                text += part
        return ids + list(self._encode_text(text))

    def _encode_text(self, text: str) -> Sequence[int]:
        if not text:
            return ()
        return self._encode_short(text) if len(text) <= _MEMO_CHARS else self.tokenizer.encode(text)

    def _parts_of(self, ids: Iterable[int]) -> list[Part]:
        parts: list[Part] = []
        run: list[int] = []
        for token_id in map(int, ids):
            mark = self._mark_of.get(token_id)
            if mark is None:
                run.append(token_id)
                continue
            if run:
                parts.append(self.tokenizer.decode(run))
                run = []
            parts.append(mark)
        return [*parts, self.tokenizer.decode(run)] if run else parts

    def _fingerprint(self) -> str:
        """Digest of the rendering rules, taken from what they make of a conversation that uses all of them."""
        call = ToolCall("call_0", "t", {"a": "x", "b": [1, "é"]})
        chain = [system("s"), user("u"), assistant("c", call, call, reasoning="r"), *[tool_result(call, "o")] * 2]
        tools = (ToolSpec("t", "d", {"type": "object", "properties": {}}),)
        whole = self.opening_text([*chain, assistant("c", reasoning="r"), user("u")], tools)
        turn = "".join(wire.turn_parts(self.dialect, chain[2], thinking=self.thinking))
        return hashlib.sha256(f"{self.history}\n{whole}\n{turn}".encode()).hexdigest()


def _split_marks(text: str) -> list[Part]:
    """Trusted template text as parts: its special tokens are meant."""
    pieces = _ANY_MARK.split(text)  # texts at even places, marks at odd ones
    return [Mark(piece) if i % 2 else piece for i, piece in enumerate(pieces) if piece]

"""The tokens of one trajectory while it grows: spans, segments, and where a context is cut and goes on.

Owned here: which ids the engine sees next and who wrote each of them. A context ends early in two ways: history is
rewritten (a fork), or it is nearly full and goes on from a summary (a compaction). Either way a sampled token stands in
the segment it was sampled in as an ACTION or SUMMARY, and is CARRIED wherever it is copied to.

History is rewritten by a dialect that drops old reasoning, and by management (``glmgym.folding``), always when an
observation arrives, and at once for all reasons. Keep-recent-k puts another text in place of older results: spans keep
their places, and those up to the first folded result their ids. Discard-all goes on from the opening alone, once
opening, history and the new observation have more tokens than its limit together; that observation the engine never
sees, so no segment holds it.

A compaction, in the terms of CompactionRL (arXiv 2607.05378, equations 6 to 9): the context h is system, task and
pairs z of a turn with its observation, which are never separated. Once fewer than the reserve remain, the last
observation is followed by a request instead of the generation prompt, and a summary S is sampled. The next segment is

    system, task, resume(S), the last k pairs

where S and the pairs are copied id by id (the task may be left out, as equation 9 does). k shrinks until the new
context keeps the reserve free; if it does not even without a pair, the context is full.

An observation may jump past the limit at one go. It is never cut: where it leaves no room for the request and one
token of a summary, the context is full as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

import numpy as np

from glmgym.chat import Chat
from glmgym.compaction import SLOT, CompactionSettings, must_compact
from glmgym.engine import Generation
from glmgym.env import Opening
from glmgym.errors import ConfigError
from glmgym.folding import Management, fold
from glmgym.messages import Message, user
from glmgym.trajectory import Segment, SegmentEnd, Span, SpanKind

_UNMANAGED = Management(keep_recent=None, discard_above=None)


class Next(StrEnum):
    """What can be sampled after an observation."""

    TURN = "turn"
    SUMMARY = "summary"
    NOTHING = "nothing"  # the context is full


class Context:
    """Grows by ``sample`` and ``observe`` in turn; after an observation that asks for a summary, by ``resume``.

    Args:
        limit: most tokens the context may hold, prompt and sampled.
        management: not together with ``compaction``, which counts on a history that is whole.
    """

    def __init__(
        self,
        chat: Chat,
        opening: Opening,
        *,
        limit: int,
        compaction: CompactionSettings | None = None,
        management: Management | None = None,
    ) -> None:
        self.ids: list[int] = []  # what the engine sees; only ever appended to within a segment
        self.num_sampled = 0
        self.num_compactions = 0
        self.num_restarts = 0  # how often the history was discarded
        self._chat = chat
        self._opening = opening
        self._limit = limit
        self._compaction = compaction
        self._management = management or _UNMANAGED
        self._request = _request(chat, compaction) if compaction is not None else []
        self._closed: list[Segment] = []
        self._spans: list[Span] = []
        self._pairs: list[int] = []  # where each (turn, observation) of the open segment starts, as an index of a span
        self._whole: dict[int, Sequence[Message]] = {}  # tool results not folded yet, by the index of their span
        self._prompt = _span(SpanKind.PROMPT, chat.opening(opening.messages, opening.tools))
        self._append(self._prompt)

    @property
    def room(self) -> int:
        """How many more tokens the context may hold."""
        return self._limit - len(self.ids)

    def sample(self, kind: SpanKind, generation: Generation) -> None:
        """Append what the engine sampled, exactly as it returned it; nothing if that is no token."""
        if len(generation.token_ids):
            self._append(Span(kind, generation.token_ids, generation.logprobs, generation.versions))
            self.num_sampled += len(generation.token_ids)

    def observe(self, messages: Sequence[Message]) -> Next:
        """Append an observation as a delta, with the request for a summary once it is time for one.

        The segment is forked first where the dialect or management rewrites history; a request alone never rewrites
        it. Nothing is appended when nothing could be sampled afterwards.
        """
        spans = self._spans
        if self._chat.must_fork(messages):
            spans = list(self._chat.collapse(spans))
        old = self._old_results(len(spans), messages)
        spans = self._folded(spans, old)
        used, shown = _length(spans), fold(messages, keep=0) if len(spans) in old else messages
        delta = self._chat.delta(shown, last_id=self.ids[-1])
        if self._management.discards(used + len(delta)):
            self._restart()
            return Next.TURN
        asks = self._compaction is not None and (
            self.num_compactions < self._compaction.max_compactions
            and must_compact(self._limit, used + len(delta), self._compaction.reserve_tokens)
        )
        if asks:
            delta = [*delta[: -len(self._chat.generation_prompt)], *self._request]
        if used + len(delta) >= self._limit:
            return Next.NOTHING
        self._pairs.append(len(spans) - (self._spans[-1].kind is SpanKind.ACTION))  # a turn may have no tokens
        if spans is not self._spans:
            self._start(spans, SegmentEnd.FORKED)
        self._whole = {at: own for at, own in self._whole.items() if at not in old}
        if _has_results(messages) and len(self._spans) not in old:
            self._whole[len(self._spans)] = messages
        self._append(_span(SpanKind.OBSERVATION, delta))
        return Next.SUMMARY if asks else Next.TURN

    def resume(self, summary_ids: Sequence[int]) -> bool:
        """End the segment and go on from a summary, just sampled, and as many of the last pairs as fit.

        Returns:
            False when not even the summary alone leaves ``reserve_tokens``; the segment stays open then.
        """
        settings, chat = self._compaction, self._chat
        assert settings is not None
        kept = [message for message in self._opening.messages if settings.keep_task or message.role == "system"]
        before, after = chat.opening_around(SLOT, [*kept, user(settings.resume)], self._opening.tools)
        words = chat.words(summary_ids)
        head = [_span(SpanKind.PROMPT, before), _span(SpanKind.PROMPT, after)]
        if words:
            head.insert(1, _span(SpanKind.CARRIED, words))
        pairs = list(self._last_pairs(settings.keep_pairs))
        while must_compact(self._limit, _length(head) + sum(map(_length, pairs)), settings.reserve_tokens):
            if not pairs:
                return False
            del pairs[0]
        self._pairs = [len(head) + sum(map(len, pairs[:i])) for i in range(len(pairs))]
        self._start([*head, *(span for pair in pairs for span in pair)], SegmentEnd.COMPACTED)
        self.num_compactions += 1
        return True

    def segments(self) -> tuple[Segment, ...]:
        """Everything so far; the open segment is the last."""
        return (*self._closed, Segment(tuple(self._spans), SegmentEnd.END))

    def _append(self, span: Span) -> None:
        self._spans.append(span)
        self.ids.extend(span.token_ids.tolist())

    def _start(self, spans: list[Span], ended_by: SegmentEnd) -> None:
        self._closed.append(Segment(tuple(self._spans), ended_by))
        self._spans = spans
        self.ids = [int(token_id) for span in spans for token_id in span.token_ids]

    def _restart(self) -> None:
        self._start([self._prompt], SegmentEnd.FORKED)
        self._pairs, self._whole = [], {}
        self.num_restarts += 1

    def _old_results(self, next_at: int, messages: Sequence[Message]) -> set[int]:
        """Spans whose tool results are to be folded now that ``messages`` arrive as span ``next_at``."""
        rounds = [*self._whole, *([next_at] if _has_results(messages) else [])]
        keep = self._management.keep_recent
        return set() if keep is None else set(rounds[: max(0, len(rounds) - keep)])

    def _folded(self, spans: list[Span], old: Collection[int]) -> list[Span]:
        """The same list where folding changes nothing, otherwise the spans of the segment to come."""
        changed = {at: span for at in old if at < len(spans) and (span := self._omitted(spans, at)) is not None}
        if not changed:
            return spans
        return [changed.get(at) or _unsampled(span) for at, span in enumerate(spans)]

    def _omitted(self, spans: Sequence[Span], at: int) -> Span | None:
        """An observation without its tool results, its generation prompt as it stands; None if that is what it is."""
        chat, ids = self._chat, spans[at].token_ids.tolist()
        delta = chat.delta(fold(self._whole[at], keep=0), last_id=int(spans[at - 1].token_ids[-1]))
        folded = [*delta[: -len(chat.generation_prompt)], *ids[self._end_of_text(ids) :]]
        return _span(SpanKind.OBSERVATION, folded) if folded != ids else None

    def _end_of_text(self, ids: Sequence[int]) -> int:
        """Where an observation's generation prompt starts. Looked for: a fork leaves one without its <think>."""
        return len(ids) - 1 - ids[::-1].index(self._chat.generation_prompt[0])

    def _last_pairs(self, k: int) -> Iterator[list[Span]]:
        """The last ``k`` turns with their observations as they stand in the open segment, as copies."""
        end = len(self._spans) - self._spans[-1].kind.is_sampled  # without the summary
        starts = self._pairs[-k:] if k else []
        for start, stop in pairwise([*starts, end]):
            yield [copy for i in range(start, stop) for copy in self._copies(self._spans[i], is_last=i == end - 1)]

    def _copies(self, span: Span, *, is_last: bool) -> Iterator[Span]:
        """A span for the next segment; generation prompts apart, and the last one back in place of the request."""
        ids = span.token_ids.tolist()
        if span.kind is not SpanKind.OBSERVATION:
            yield _unsampled(span)
            return
        if is_last:
            text, prompt = ids[: -len(self._request)], self._chat.generation_prompt
        else:
            at = self._end_of_text(ids)
            text, prompt = ids[:at], ids[at:]
        if text:
            yield _span(SpanKind.CARRIED, text)
        yield _span(SpanKind.PROMPT, prompt)


def check_compaction(chat: Chat, settings: CompactionSettings, limit: int) -> None:
    """Refuse settings with which no trajectory could ever be compacted.

    Raises:
        ConfigError: the reserve does not hold the request and a summary, or the context does not hold the reserve.
    """
    request = len(_request(chat, settings)) - len(chat.generation_prompt)
    reserve, summary = settings.reserve_tokens, settings.max_summary_tokens
    if reserve < request + summary:
        raise ConfigError(
            f"[compaction] reserve_tokens = {reserve}: must hold the request ({request} tokens) and a summary "
            f"(max_summary_tokens = {summary}), {request + summary} in all"
        )
    if reserve >= limit:
        raise ConfigError(f"[compaction] reserve_tokens = {reserve}: must be less than the context of {limit} tokens")


def check_management(management: Management, limit: int) -> None:
    """Refuse settings with which a context would be full before its history is discarded.

    Raises:
        ConfigError: as many tokens as the context holds, or more, are to be kept.
    """
    if management.discard_above is not None and management.discard_above >= limit:
        raise ConfigError(
            f"discard_above = {management.discard_above}: must be less than the context of {limit} tokens, "
            "or it is full before its history is discarded"
        )


def _request(chat: Chat, settings: CompactionSettings) -> list[int]:
    """What stands in place of the generation prompt after the last observation, a generation prompt at its end."""
    return chat.delta([user(settings.request)], last_id=-1)


def _span(kind: SpanKind, ids: Sequence[int]) -> Span:
    return Span(kind, np.asarray(ids, dtype=np.int32))


def _unsampled(span: Span) -> Span:
    """As a copy in the next segment."""
    return Span(SpanKind.CARRIED, span.token_ids) if span.kind.is_sampled else span


def _has_results(messages: Sequence[Message]) -> bool:
    return any(message.role == "tool" for message in messages)


def _length(spans: Iterable[Span]) -> int:
    return sum(map(len, spans))

"""Stored trajectories as pictures for a terminal: one of them token by token, or a run's as a table.

Owned here: rendering only; nothing is read or printed. Text from policies and environments is data: markup in it is
never interpreted, and control characters are shown as symbols instead of reaching the terminal.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from glmgym.store import State, Summary, TrajectoryStore
from glmgym.store.credit import Advantages
from glmgym.trajectory import NO_VERSION, Outcome, Segment, Span, SpanKind, Trajectory

Decode = Callable[[Sequence[int]], str]

_STYLES = {
    SpanKind.PROMPT: "blue",
    SpanKind.OBSERVATION: "yellow",
    SpanKind.CARRIED: "dim",
    SpanKind.ACTION: "green",
    SpanKind.SUMMARY: "bold magenta",
}
_STATE_STYLES = {State.CONSUMED: "green", State.DISCARDED: "red", State.TRAINING: "magenta", State.READY: "cyan"}


def render_trajectory(
    trajectory: Trajectory,
    decode: Decode,
    *,
    tokens: bool = False,
    max_tokens: int = 400,
    row: Summary | None = None,
    advantages: Mapping[int, Advantages] | None = None,
) -> RenderableType:
    """One trajectory: every span in the colour of its kind, then the outcome, rewards and timings.

    Args:
        decode: token ids to text.
        tokens: a table row per token, with log-prob (nats) and version where it was sampled, instead of running text.
        max_tokens: of one span; a longer span shows its two ends and says how many tokens lie between.
        row: the store's, which knows what became of it.
        advantages: of a segment's sampled tokens, by the segment's index; see ``store.read_credit``.
    """
    parts: list[RenderableType] = [_title(trajectory), _legend()]
    turn = 0
    for i, segment in enumerate(trajectory.segments):
        parts.append(Rule(Text(_segment_title(i, len(trajectory.segments), segment)), style="dim"))
        for span, own in _with_advantages(segment, (advantages or {}).get(i)):
            turn += span.kind is SpanKind.ACTION
            parts.append(_span_title(span, turn, own))
            if tokens:
                parts.append(_token_table(span, decode, max_tokens, own))
            else:
                parts.append(_running_text(span, decode, max_tokens))
    parts += [Rule(style="dim"), _outcome(trajectory.outcome)]
    if row is not None and row.num_trained is not None:
        parts.append(Text(f"trained: {row.num_trained} of {row.num_sampled} sampled tokens, in update {row.step}"))
    return Group(*parts, _provenance(trajectory))


def render_run(store: TrajectoryStore, *, limit: int | None = None) -> RenderableType:
    """The trajectories of a store as a table, oldest first; with ``limit`` only the newest so many with a record."""
    counts = store.counts()
    if limit is None:
        shown = store.summaries()
    else:
        shown = [row for row in store.summaries() if row.num_tokens or row.failure][-limit:]
    title = (
        f"{counts.issued} issued: {counts.consumed} consumed, {counts.unfinished} open, {counts.discarded} discarded"
    )
    table = Table(title=Text(title), header_style="bold", box=None)
    for name in ("id", "family", "versions", "turns", "tokens", "sampled", "reward or failure", "state"):
        numeric = name in ("turns", "tokens", "sampled")
        justify: Literal["left", "right"] = "right" if numeric else "left"
        # Folded, not cut: in a narrow terminal an id that ends in … is of no use.
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "id")
    for row in shown:
        table.add_row(
            row.id,
            visible(row.family or row.task_id),
            _version_span(row),
            str(row.num_turns),
            str(row.num_tokens),
            str(row.num_sampled),
            _result(row),
            Text(row.state, _STATE_STYLES.get(row.state, "")) + visible(f" ({row.reason})" if row.reason else ""),
        )
    return table


def visible(text: str, style: str = "") -> Text:
    """Text as data: control, format and undecodable characters as symbols or escapes, newlines as ``⏎`` on one line."""
    return Text("".join(map(_visible_character, text)), style)


def _visible_character(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "⏎"
    if code < 0x20:
        return chr(0x2400 + code)  # the symbol of the control character, such as ␛
    if code == 0x7F:
        return "␡"
    # Cc: C1 controls; Cf: bidirectional overrides, zero-width characters; Cs: lone surrogates; Co, Cn: no known shape;
    # Zl, Zp: line breaks to some terminals.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\\u{{{code:x}}}"
    return character


def _title(trajectory: Trajectory) -> Text:
    title = Text(trajectory.id, "bold")
    names = (trajectory.env_id, trajectory.task_id, trajectory.family, trajectory.group_id)
    return title + visible("  " + " · ".join(name for name in names if name))


def _legend() -> Text:
    return Text("  ").join(Text(kind, style) for kind, style in _STYLES.items())


def _segment_title(i: int, n: int, segment: Segment) -> str:
    carried = sum(len(span) for span in segment.spans if span.kind is SpanKind.CARRIED)
    copied = f", {carried} carried over" if carried else ""
    return f"segment {i + 1} of {n} · {len(segment)} tokens, {segment.num_sampled} sampled{copied} · {segment.ended_by}"


def _with_advantages(segment: Segment, advantages: Advantages | None) -> Iterator[tuple[Span, Advantages | None]]:
    """Each span with its own part of the segment's advantages, which has an entry per sampled token."""
    at = 0
    for span in segment.spans:
        if advantages is None or not span.kind.is_sampled:
            yield span, None
            continue
        yield span, advantages[at : at + len(span)]
        at += len(span)


def _span_title(span: Span, turn: int, advantages: Advantages | None) -> Text:
    name = f"{span.kind} {turn}" if span.kind is SpanKind.ACTION else span.kind.value
    title = f"▌{name} · {len(span)} tokens"
    if span.logprobs is not None and span.versions is not None:
        low, high = int(span.versions[0]), int(span.versions[-1])
        version = f"version {low}" if low == high else f"versions {low} to {high}"
        title += (
            f" · log-prob mean {float(span.logprobs.mean()):.3f}, least {float(span.logprobs.min()):.3f} · {version}"
        )
    if advantages is not None:
        trained = advantages[~np.isnan(advantages)]
        title += f" · advantage mean {float(trained.mean()):+.3f}" if len(trained) else " · not trained"
    return Text(title, f"bold {_STYLES[span.kind]}")


def _running_text(span: Span, decode: Decode, max_tokens: int) -> Text:
    text, style = Text(), _STYLES[span.kind]
    for ids in _ends(span, max_tokens):
        if text:
            text.append(f"\n… {len(span) - max_tokens} tokens not shown …\n", "dim italic")
        # The symbol stays and the line breaks too, so that a file listing still looks like one.
        lines = decode(ids).split("\n")
        text.append_text(Text("⏎\n", style).join(visible(line, style) for line in lines))
    return text


def _token_table(span: Span, decode: Decode, max_tokens: int, advantages: Advantages | None) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for name in ("position", "id", "log-prob", "version", *(["advantage"] if advantages is not None else [])):
        table.add_column(name, justify="right")
    table.add_column("text")
    head, *tail = _ends(span, max_tokens)
    at = 0
    for part in (head, *tail):
        if at:
            at = len(span) - len(part)
            blanks = [""] * (3 if advantages is None else 4)
            table.add_row("…", *blanks, Text(f"{len(span) - max_tokens} tokens not shown", "dim italic"))
        for token_id in part:
            logprob = "" if span.logprobs is None else f"{float(span.logprobs[at]):.4f}"
            version = "" if span.versions is None else str(int(span.versions[at]))
            credit = [] if advantages is None else [_advantage(float(advantages[at]))]
            text = visible(decode([token_id]).replace(" ", "␣"), _STYLES[span.kind])
            table.add_row(str(at), str(token_id), logprob, version, *credit, text)
            at += 1
    return table


def _advantage(value: float) -> Text:
    if math.isnan(value):
        return Text("-", "dim")  # sampled, but left out by the algorithm
    return Text(f"{value:+.4f}", "green" if value > 0 else "red" if value < 0 else "dim")


def _ends(span: Span, max_tokens: int) -> Iterator[list[int]]:
    """The span's ids, or its first and last ``max_tokens`` // 2 (rounded up for the first) when there are more."""
    ids = span.token_ids.tolist()
    if len(ids) <= max_tokens:
        yield ids
    else:
        yield ids[: max_tokens - max_tokens // 2]
        yield ids[len(ids) - max_tokens // 2 :]


def _outcome(outcome: Outcome) -> RenderableType:
    text = Text(f"outcome: {outcome.stop}", "bold")
    if outcome.failure is not None:
        failure = outcome.failure
        text.append_text(visible(f" · {failure.origin} failure, {failure.type}: {failure.message}", "red"))
    elif outcome.rewards:
        text.append(f" · reward {outcome.total():.4g}")
    for reward in outcome.rewards:
        line = f"\n  {reward.name} ({reward.source}): {reward.value:.4g} × {reward.weight:.4g}"
        text.append("\n")
        text.append_text(visible(line[1:] + (f"  {reward.reason}" if reward.reason else "")))
    return text


def _provenance(trajectory: Trajectory) -> Text:
    provenance = trajectory.provenance
    timings = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in provenance.timings_s.items())
    facts = (provenance.engine, provenance.precision, timings, f"answer: {trajectory.final_answer}")
    return visible(" · ".join(fact for fact in facts if fact), "dim")


def _version_span(row: Summary) -> str:
    if row.oldest_version == NO_VERSION:
        return "-"
    return str(row.oldest_version) + ("" if row.oldest_version == row.newest_version else f"-{row.newest_version}")


def _result(row: Summary) -> Text:
    if row.failure:
        return visible(row.failure, "red")
    return Text("-" if row.reward is None else f"{row.reward:.4g}")

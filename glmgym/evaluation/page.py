"""An evaluation as one HTML page: self-contained, light and dark, of bounded size, everything foreign escaped.

Owned here: what a reader sees first, and which transcripts are shown when there are too many for one page: failures,
then flagged, then unsolved, then solved attempts. Text from policies and environments is data; it never becomes markup.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from glmgym.evaluation.attempt import Attempt
from glmgym.evaluation.charts import bar_chart, curve_chart, histogram, interval_chart
from glmgym.evaluation.directory import flat, management_of
from glmgym.evaluation.evaluate import EvalReport
from glmgym.evaluation.passk import SOLVED
from glmgym.evaluation.style import SCRIPT, STYLE
from glmgym.messages import Message
from glmgym.viewer import visible

MAX_ATTEMPTS = 300  # rows with a transcript
MAX_MESSAGE_CHARS = 4_000  # kept of one message, half from each end
MAX_PAGE_CHARS = 6_000_000  # of all transcripts together
_MARKS = {"solved": "✓", "partial": "◐", "unsolved": "✗", "failed": "!"}


def render_page(terms: Mapping[str, Any], found: EvalReport, attempts: Sequence[Attempt]) -> str:
    """The whole page.

    Args:
        terms: of the evaluation, as on disk.
        attempts: in the order in which they are listed.
    """
    title = f"{terms['environment']} · {terms['policy']}"
    body = [
        _header(terms, found, attempts),
        f'<main><div class="grid">{"".join(_charts(found, attempts))}</div>',
        _family_table(found),
        _attempt_list(attempts),
        _terms_table(terms),
        "</main>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>'
        f"<body>{''.join(body)}<script>{SCRIPT}</script></body></html>\n"
    )


def status(attempt: Attempt) -> str:
    """``failed``, ``solved``, ``partial`` or ``unsolved``."""
    if not attempt.outcome.is_valid:
        return "failed"
    value = attempt.outcome.result()
    return "solved" if value >= SOLVED else "partial" if value > 0 else "unsolved"


def _header(terms: Mapping[str, Any], found: EvalReport, attempts: Sequence[Attempt]) -> str:
    overall, wanted = found.overall, int(terms["tasks"]) * int(terms["attempts"])
    failed = sum(found.failures.values())
    flagged = sum(bool(attempt.transcript.flags) for attempt in attempts)
    replaced = sum(len(attempt.replaced) for attempt in attempts)
    sampled = sum(attempt.num_sampled for attempt in attempts)
    cards = [
        ("success", _number(overall.mean), f"95 % interval {_number(overall.low)} to {_number(overall.high)}", "main"),
        ("attempts", f"{overall.count}", f"graded, at {overall.tasks} of {terms['tasks']} tasks", ""),
        (
            "failures",
            str(failed),
            "in no score" + (f"; {replaced} tries played again" if replaced else ""),
            "bad" * bool(failed),
        ),
        ("flagged", str(flagged), "with failed or guarded calls, flagged grades, restarts", "warn" * bool(flagged)),
        ("turns", _number(_mean([a.num_turns for a in attempts]), 1), "per attempt", ""),
        ("time", f"{_mean([a.wall_s for a in attempts]):.1f} s", "per attempt", ""),
    ]
    if sampled:
        cards.append(("tokens", f"{sampled / max(1, len(attempts)):,.0f}", "sampled per attempt", ""))
    shown = "".join(
        f'<div class="card {kind}"><div class="name">{name}</div><div class="big">{value}</div><div>{note}</div></div>'
        for name, value, note, kind in cards
    )
    unfinished = (
        f'<p class="unfinished">{len(attempts)} of {wanted} attempts so far</p>' if len(attempts) < wanted else ""
    )
    when = min((attempt.started_at for attempt in attempts), default="")[:16].replace("T", " ")
    line = f"{_text(str(terms['policy']))} · {terms['split']} tasks · {terms['attempts']} per task · {when} UTC"
    managed = f"<br>{management.text}" if (management := management_of(terms)) is not None else ""
    heading = f"<h1>{_text(str(terms['environment']))}</h1><p>{line}{managed}</p>"
    return f'<header>{heading}{unfinished}<div class="cards">{shown}</div></header>'


def _charts(found: EvalReport, attempts: Sequence[Attempt]) -> Iterator[str]:
    rows = [(name or "-", family) for name, family in found.families.items()]
    shown = [*rows[:40], ("all", found.overall)]
    yield _figure(
        "Success by family",
        interval_chart([(n, e.mean, e.low, e.high, f"{_number(e.mean)} · {e.tasks} tasks") for n, e in shown]),
        "Dots are means over tasks, bars 95 % intervals. Failed attempts are in neither.",
    )
    if found.attempts_per_task > 1:
        passes = found.passes
        series = {
            "pass@k": [(k, mean) for k, (mean, _) in passes.pass_at.items()],
            "pass^k": [(k, mean) for k, (mean, _) in passes.pass_hat.items()],
        }
        note = "The chance that at least one, or that every one, of k attempts solves a task; unbiased, over tasks."
        yield _figure("pass@k", curve_chart(series), note)
    yield _figure("Turns", histogram([a.num_turns for a in attempts], "turns per attempt"), "")
    if any(attempt.num_sampled for attempt in attempts):
        yield _figure("Tokens", histogram([a.num_sampled for a in attempts], "sampled tokens per attempt"), "")
    yield _figure("Time", histogram([a.wall_s for a in attempts], "seconds per attempt, grading included"), "")
    yield _figure("How attempts ended", bar_chart(found.stops, "bar"), "")
    if found.failures:
        note = "Something broke: no score of the policy, and in no mean."
        yield _figure("Failures by origin", bar_chart(found.failures, "failure"), note)


def _figure(title: str, chart: str, note: str) -> str:
    caption = f"<p>{note}</p>" if note else ""
    return f"<figure><h2>{title}</h2>{chart}{caption}</figure>" if chart else ""


def _family_table(found: EvalReport) -> str:
    ks = [k for k in found.passes.pass_at if k > 1]
    names = [
        "family",
        "success",
        "95 % interval",
        *(f"pass@{k}" for k in ks),
        *(f"pass^{k}" for k in ks),
        "tasks",
        "attempts",
    ]
    lines = ["".join(f"<th>{name}</th>" for name in names)]
    rows = [(name or "-", row, found.family_passes[name]) for name, row in found.families.items()]
    for name, row, passes in [*rows, ("all", found.overall, found.passes)]:
        found_at = [*(passes.pass_at[k] for k in ks), *(passes.pass_hat[k] for k in ks)]
        shares = [_number(mean) + f"<br><small>{n} tasks</small>" * (n != row.tasks) for mean, n in found_at]
        interval = f"{_number(row.low)} to {_number(row.high)}"
        cells = [_text(name), _number(row.mean), interval, *shares, str(row.tasks), str(row.count)]
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<section><h2>Table</h2><div class="wide"><table>{table}</table></div></section>'


def _attempt_list(attempts: Sequence[Attempt]) -> str:
    order = {"failed": 0, "flagged": 1, "unsolved": 2, "partial": 2, "solved": 3}

    def rank(attempt: Attempt) -> int:
        kind = status(attempt)
        return order["flagged" if attempt.transcript.flags and kind != "failed" else kind]

    counts = Counter(status(attempt) for attempt in attempts)
    rows: list[str] = []
    used = 0
    for attempt in sorted(attempts, key=rank)[:MAX_ATTEMPTS]:
        row = _attempt(attempt)
        used += len(row)
        if used > MAX_PAGE_CHARS:
            break
        rows.append(row)
    left = len(attempts) - len(rows)
    more = (
        f"<p>{left} more attempts are in attempts.jsonl; failures, flagged and unsolved ones come first here.</p>"
        if left
        else ""
    )
    buttons = "".join(
        f'<button data-show="{kind}">{mark} {kind} {counts[kind]}</button>'
        for kind, mark in _MARKS.items()
        if counts[kind]
    )
    controls = f'<div class="filter"><button data-show="" class="on">all {len(attempts)}</button>{buttons}</div>'
    return f'<section id="attempts"><h2>Attempts</h2>{controls}{"".join(rows)}{more * bool(left)}</section>'


def _attempt(attempt: Attempt) -> str:
    kind, outcome = status(attempt), attempt.outcome
    value = "failed" if kind == "failed" else f"{outcome.result():.3g}"
    flags = "".join(f'<span class="flag">{_text(n)} {c}</span>' for n, c in attempt.transcript.flags.items())
    facts = f"{attempt.num_turns} turns · {attempt.wall_s:.1f} s · {outcome.stop}"
    head = (
        f'<summary><span class="mark {kind}">{_MARKS[kind]}</span><span class="id">{_text(attempt.id)}</span>'
        f'<span class="family">{_text(attempt.family)}</span>{flags}<span class="facts">{facts}</span>'
        f'<span class="reward">{value}</span></summary>'
    )
    failures = [*attempt.replaced, *([outcome.failure] if outcome.failure else [])]
    notes = "".join(
        f'<p class="broken">{_text(f.origin)} failure, {_text(f.type)}: {_text(_cut(f.message))}</p>' for f in failures
    )
    rewards = "".join(
        f"<li>{_text(r.name)} ({_text(r.source)}): {r.value:.4g} × {r.weight:.4g}{' shaping' * r.shaping} "
        f"{_text(_cut(r.reason))}</li>"
        for r in outcome.rewards
    )
    talk = "".join(_message(message) for message in attempt.transcript.messages)
    return f'<details data-kind="{kind}">{head}<div class="talk">{notes}{talk}<ul>{rewards}</ul></div></details>'


def _message(message: Message) -> str:
    parts = [f'<div class="who">{message.role}</div>']
    if message.reasoning:
        parts.append(f'<pre class="reasoning">{_text(_cut(message.reasoning))}</pre>')
    if message.content:
        parts.append(f"<pre>{_text(_cut(message.content))}</pre>")
    for call in message.tool_calls:
        arguments = "\n".join(f"{key}: {value}" for key, value in call.arguments.items())
        error = f'<p class="broken">{_text(_cut(call.error))}</p>' if call.error else ""
        parts.append(f'<pre class="call"><b>{_text(call.name)}</b>\n{_text(_cut(arguments))}</pre>{error}')
    return f'<div class="message {message.role}">{"".join(parts)}</div>'


def _terms_table(terms: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><td>{_text(k)}</td><td>{_text(str(v))}</td></tr>" for k, v in flat(terms).items())
    table = f'<div class="wide"><table>{rows}</table></div>'
    return f"<section><details><summary><h2>Terms</h2></summary>{table}</details></section>"


def _cut(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    half = MAX_MESSAGE_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters not shown …]\n{text[-half:]}"


def _text(text: str) -> str:
    """Foreign text as HTML: escaped, control characters as symbols."""
    return "\n".join(escape(visible(line).plain) for line in text.split("\n"))


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan

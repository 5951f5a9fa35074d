"""``glmgym report``, ``compare`` and ``export``: evaluations on disk as tables, a page, and ATIF documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glmgym.evaluation import Attempt, EvalReport, compare, read_attempts, report
from glmgym.evaluation.compare import Row
from glmgym.evaluation.directory import PAGE, in_order, management_of, read_terms_file, write_summary
from glmgym.evaluation.page import render_page
from glmgym.folding import Management


def show_result(console: Console, found: EvalReport, management: Management | None) -> None:
    """Print the table, under how the policy's context was managed."""
    if management is not None:
        console.print(management.text, markup=False, highlight=False, soft_wrap=True)
    console.print(result_table(found))


def result_table(found: EvalReport) -> Table:
    """Success per family and of all, with intervals; pass@k where there are several attempts."""
    ks = [k for k in found.passes.pass_at if k > 1]
    columns = [*(f"pass@{k}" for k in ks), *(f"pass^{k}" for k in ks[-1:])]
    table = Table("family", "success", "95 % interval", *columns, "tasks", "attempts", box=None, header_style="bold")
    rows = [(name, row, found.family_passes[name]) for name, row in found.families.items()]
    for name, row, passes in [*rows, ("all", found.overall, found.passes)]:
        shares = [*(passes.pass_at[k] for k in ks), *(passes.pass_hat[k] for k in ks[-1:])]
        cells = [share_text(*share, of=row.tasks) for share in shares]
        interval = f"{row.low:.3f} to {row.high:.3f}"
        style = "bold" if name == "all" else ""
        table.add_row(name or "-", f"{row.mean:.3f}", interval, *cells, str(row.tasks), str(row.count), style=style)
    return table


def share_text(mean: float, tasks: int, *, of: int) -> str:
    """A pass@k; where some tasks have too few attempts that did not fail, over how many tasks it is."""
    return f"{mean:.3f}" if tasks == of else f"{mean:.3f} ({tasks} tasks)"


def attempts_note(attempts: Sequence[Attempt]) -> list[str]:
    """Sentences on what the table leaves out: failures by origin, tries that were played again, flags."""
    notes: list[str] = []
    failures = Counter(attempt.outcome.failure.origin for attempt in attempts if attempt.outcome.failure is not None)
    if failures:
        notes.append(f"failures, not in the mean: {dict(failures)}; with --out, --resume makes these attempts again")
    if replaced := Counter(failure.origin for attempt in attempts for failure in attempt.replaced):
        notes.append(f"tries that failed and were played again: {dict(replaced)}")
    if flags := flag_counts(attempts):
        notes.append("flags: " + ", ".join(f"{name} {count} in {of} attempts" for name, (count, of) in flags.items()))
    return notes


def flag_counts(attempts: Sequence[Attempt]) -> dict[str, tuple[int, int]]:
    """By flag: how often it was raised, and in how many attempts."""
    found: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        for name, count in attempt.transcript.flags.items():
            before = found.get(name, (0, 0))
            found[name] = (before[0] + count, before[1] + 1)
    return dict(sorted(found.items()))


def write_outputs(directory: Path, found: EvalReport, attempts: Sequence[Attempt]) -> None:
    """``summary.json`` and ``report.html`` of an evaluation on disk."""
    terms = read_terms_file(directory)
    attempts = in_order(attempts)
    write_summary(directory, {"policy": terms["policy"], **found.summary(), **terms["playing"], **_costs(attempts)})
    (directory / PAGE).write_text(render_page(terms, found, attempts), encoding="utf-8", errors="replace")


def show_report(console: Console, directory: Path) -> None:
    """Count an evaluation on disk again, finished or not, and write its page.

    Raises:
        ConfigError: the directory holds no evaluation.
        StoreError: an attempt cannot be read.
    """
    terms, attempts = read_terms_file(directory), in_order(read_attempts(directory))
    found = report(attempts, terms["environment"], terms["split"], terms["attempts"])
    show_result(console, found, management_of(terms))
    for note in attempts_note(attempts):
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    wanted = terms["tasks"] * terms["attempts"]
    if len(attempts) < wanted:
        console.print(f"{len(attempts)} of {wanted} attempts so far", style="yellow", highlight=False)
    write_outputs(directory, found, attempts)
    console.print(f"Written: {directory / PAGE}", markup=False, highlight=False, soft_wrap=True)


def show_comparison(console: Console, first: Path, second: Path) -> None:
    """Print the paired comparison of two evaluations.

    Raises:
        ConfigError: they are of different tasks or terms, or one is unfinished.
    """
    found = compare(first, second)
    for letter, policy in zip("AB", found.policies, strict=True):
        console.print(f"{letter}: {policy}", markup=False, highlight=False, soft_wrap=True)
    columns = ("family", "A", "B", "B - A", "95 % interval", "better / same / worse", "p")
    table = Table(*columns, box=None, header_style="bold")
    for row in (*found.families, found.overall):
        table.add_row(*_cells(row), style="bold" if row is found.overall else "")
    console.print(table)
    if found.left_out:
        note = f"{found.left_out} tasks left out: one side has nothing but failures there"
        console.print(note, style="yellow", highlight=False)


def _cells(row: Row) -> list[str]:
    pair, change = row.pair, row.pair.difference
    return [
        row.name or "-",
        f"{row.first.mean:.3f}",
        f"{row.second.mean:.3f}",
        f"{change.mean:+.3f}",
        f"{change.low:+.3f} to {change.high:+.3f}",
        f"{pair.better} / {pair.same} / {pair.worse}",
        f"{pair.p_value:.3g}",
    ]


def _costs(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What the evaluation took and what its reader should know of, summed over attempts."""
    requests = [request for attempt in attempts for request in attempt.transcript.requests]
    return {
        "flags": {name: {"count": n, "attempts": of} for name, (n, of) in flag_counts(attempts).items()},
        "replaced": dict(Counter(failure.origin for attempt in attempts for failure in attempt.replaced)),
        "usage": {
            "turns": sum(attempt.num_turns for attempt in attempts),
            "requests": len(requests),
            "prompt_tokens": sum(request.prompt_tokens for request in requests),
            "sampled_tokens": sum(request.sampled_tokens for request in requests),
            "wall_s": round(sum(attempt.wall_s for attempt in attempts), 3),
        },
    }

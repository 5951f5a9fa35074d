"""``glmgym prove``: run a controlled experiment and show its table and its verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glmgym.errors import ConfigError
from glmgym.registry import load_component

UNBOUND = 10_000  # columns: how wide a table would like to be
STYLES = {"yes": "green", "no": "red", "inconclusive": "yellow"}


def list_experiments(console: Console) -> None:
    """Every experiment and its claim."""
    _, claims = load_component("trainers", "prove")
    table = Table(box=None, header_style="bold")
    table.add_column("experiment", no_wrap=True)
    table.add_column("claim", overflow="fold")
    for name, claim in claims().items():
        table.add_row(name, claim)
    console.print(table)


def run_experiments(
    console: Console,
    name: str,
    *,
    seeds: int | None,
    quick: bool,
    out: Path,
    processes: int,
    overrides: dict[str, Any],
) -> bool:
    """Run one experiment, or all of them; whether every gate of theirs holds. What was finished before is kept.

    Raises:
        ConfigError: no such experiment, or a setting that it does not have.
    """
    prove, claims = load_component("trainers", "prove")
    if name == "all" and overrides:
        raise ConfigError("--set is for one experiment: they have different settings")
    passed = True
    for each in claims() if name == "all" else [name]:
        with _progress(console) as progress:
            bar = progress.add_task(each, total=None)
            proven = prove(
                each,
                seeds=seeds or (2 if quick else 5),
                quick=quick,
                out=out,
                overrides=overrides,
                processes=processes,
                on_progress=lambda done, total, bar=bar: progress.update(bar, completed=done, total=total),
            )
        _show(console, each, proven)
        passed = passed and proven.passed
    return passed


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(console: Console, name: str, proven: Any) -> None:
    heading, *rows = proven.table
    table = Table(box=None, header_style="bold", title=name, title_justify="left", title_style="bold")
    for column in heading:
        table.add_column(column, no_wrap=column == "arm")
    for row in rows:
        table.add_row(*(cell.strip("`").replace(" ", "") for cell in row))
    if Measurement.get(console, console.options.update(max_width=UNBOUND), table).minimum <= console.width:
        console.print(table)
    else:
        too_wide = Text(f"{name} (the table is wider than this window: see report.md)", style="bold")
        console.print(too_wide, soft_wrap=True)
    for each in proven.judgements:
        found, claim = each.found, each.claim
        gate = "gate: " if claim.gate else ""
        text = f"{gate}{claim.says} {claim.measure}: {found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
        console.print(Text.assemble((f"{each.holds:12s}", STYLES[each.holds]), " ", text), soft_wrap=True)
    console.print(f"Written to {proven.directory}.", highlight=False, soft_wrap=True)

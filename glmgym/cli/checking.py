"""``glmgym check``: environments proven one after the other, what is wrong in sentences, and a table of counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from glmgym.check import CheckReport, check, pick
from glmgym.errors import ConfigError
from glmgym.registry import EnvSpec, find_environment, load_component


def check_all(console: Console, names: Sequence[str], *, tasks: str, backend: str, max_live: int) -> bool:
    """Check each environment and show how it went; True if all are sound.

    Raises:
        ConfigError: an unknown name or backend, or ``tasks`` is neither a number nor ``all``.
    """
    if tasks != "all" and not (tasks.isdecimal() and int(tasks) > 0):
        raise ConfigError(f"--tasks {tasks}: give a number of at least 1, or all")
    wanted = None if tasks == "all" else int(tasks)
    specs = [find_environment(name) for name in names]
    rows = []
    for spec in specs:
        began = time.monotonic()
        report = asyncio.run(_check(console, spec, wanted, backend, max_live))
        rows.append((report, time.monotonic() - began))
        for problem in report.problems:
            console.print(f"✗ {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
        if report.ok:
            console.print(f"✓ {spec.id}: {report.summary}", style="green", markup=False, highlight=False)
    if len(rows) > 1:
        console.print(_table(rows))
    return all(report.ok for report, _ in rows)


async def _check(console: Console, spec: EnvSpec, tasks: int | None, backend: str, max_live: int) -> CheckReport:
    provider = load_component("sandboxes", backend)() if spec.box is not None else None
    columns = (TextColumn("{task.description}", markup=False), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        total = len((await asyncio.to_thread(pick, spec, tasks))[0])
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(spec.id, total=total)
            return await check(
                spec, provider, tasks=tasks, max_live=max_live, on_checked=lambda task: progress.advance(bar)
            )
    finally:
        if provider is not None:
            await provider.close()


def _table(rows: Sequence[tuple[CheckReport, float]]) -> Table:
    table = Table(box=None, header_style="bold")
    for title in ("environment", "tasks", "episodes", "problems", "seconds"):
        table.add_column(title, justify="left" if title == "environment" else "right", no_wrap=True)
    for report, seconds in rows:
        style = "" if report.ok else "red"
        counts = (len(report.task_ids), report.episodes, len(report.problems))
        table.add_row(report.env_id, *map(str, counts), f"{seconds:.1f}", style=style)
    return table

"""``glmgym sandbox self-check``: the contract of a sandbox, run on a backend and shown as a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glmgym.registry import load_component
from glmgym.sandbox import BoxSpec

MARKS = {"passed": ("✓", "green"), "failed": ("✗", "red"), "not applicable": ("·", "yellow")}

app = typer.Typer(help="Examine sandbox backends.")


@app.callback()
def root() -> None:
    """Examine sandbox backends."""  # a callback keeps the name of an only command


@app.command(name="self-check")
def self_check(
    backend: Annotated[str, typer.Option(help="A backend that is installed, your own included.")] = "bubblewrap",
    image: Annotated[str, typer.Option(help="Image of its boxes.", show_default="the backend's own")] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A check or a theme; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Prove that a backend keeps the contract: files, commands, timeouts, shells, limits, isolation, death."""
    checks, select, run_checks = load_component("sandbox_checks", "self_check")
    chosen = select(checks, only or [])
    limits_note, outcomes = asyncio.run(_examine(backend, image, chosen, run_checks))
    failed = sum(outcome.verdict == "failed" for outcome in outcomes)
    if as_json:
        plain = [outcome.plain() for outcome in outcomes]
        facts = {"backend": backend, "image": image, "limits_note": limits_note, "passed": not failed, "checks": plain}
        print(json.dumps(facts, indent=2))
    else:
        _show(Console(), backend, limits_note, outcomes)
    if failed:
        raise typer.Exit(1)


async def _examine(backend: str, image: str, checks: Sequence[Any], run_checks: Any) -> tuple[str, list[Any]]:
    """The backend's note on its limits, and an outcome for each check.

    Raises:
        ConfigError: no such backend, or its extra is missing.
        SandboxFailure: not even one box can be opened; then no check says more.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    provider = load_component("sandboxes", backend)()
    try:
        await (await provider.open(BoxSpec(image=image))).close()
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(backend, total=len(checks))
            outcomes = await run_checks(
                provider,
                checks,
                image=image,
                on_start=lambda check: progress.update(bar, description=check.name.replace("_", " ")),
                on_outcome=lambda outcome: progress.advance(bar),
            )
        return provider.limits_note, outcomes
    finally:
        await provider.close()


def _show(console: Console, backend: str, limits_note: str, outcomes: Sequence[Any]) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("check", overflow="fold")
    table.add_column("proves", overflow="fold")
    table.add_column("seconds", justify="right")
    for theme, group in groupby(outcomes, key=lambda outcome: outcome.check.theme):
        table.add_row("", Text(theme, style="bold"))
        for outcome in group:
            check = outcome.check
            table.add_row(Text(*MARKS[outcome.verdict]), check.name, ", ".join(check.proves), f"{outcome.wall_s:.2f}")
    console.print(table)
    for outcome in outcomes:
        if outcome.verdict != "passed":
            said = outcome.why or f"expected {outcome.expected}, saw {outcome.seen}"
            name = (outcome.check.name, "bold")
            line = Text.assemble(MARKS[outcome.verdict], " ", name, f" {outcome.verdict}: {said}")
            console.print(line, soft_wrap=True)
    if limits_note:
        console.print(f"The backend says: {limits_note}", markup=False, highlight=False, soft_wrap=True)
    number = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in MARKS}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in number.items() if count or verdict == "passed")
    console.print(f"{backend}: {counts}", style="red" if number["failed"] else "green", markup=False, highlight=False)

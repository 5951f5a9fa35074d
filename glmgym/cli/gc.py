"""``glmgym gc``: what became of each thing that carries our name, as a table or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"removed": "green", "would remove": "yellow", "kept": "", "failed": "red", "skipped": "yellow"}


class Finding(Protocol):
    """What a collector reports: see the sandboxes' ``gc``."""

    @property
    def kind(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def age_s(self) -> float | None: ...

    @property
    def result(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def plain(self) -> dict[str, Any]: ...


def show(console: Console, findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print them: things first, then in sentences what was skipped and how many there are of each result."""
    if as_json:
        print(json.dumps([finding.plain() for finding in findings], indent=2))
        return
    things = [finding for finding in findings if finding.result != "skipped"]
    if things:
        table = Table(box=None, header_style="bold")
        table.add_column("kind", no_wrap=True)
        table.add_column("id", overflow="fold")
        table.add_column("owner", overflow="fold")
        table.add_column("age", justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        for thing in things:
            result = Text(thing.result, STYLES[thing.result])
            if thing.reason:
                result.append(f": {thing.reason}")
            table.add_row(thing.kind, Text(thing.id), thing.owner, age(thing.age_s), result)
        console.print(table)
    for finding in findings:
        if finding.result == "skipped":
            console.print(f"skipped {finding.id}: {finding.reason}", markup=False, highlight=False, soft_wrap=True)
    counts = Counter(thing.result for thing in things)
    said = ", ".join(f"{counts[result]} {result}" for result in STYLES if counts[result])
    console.print(said or "Nothing is left of any box.", highlight=False)


def age(seconds: float | None) -> str:
    """An age in its largest whole unit, "" if it is not known."""
    if seconds is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 1:.0f} s"

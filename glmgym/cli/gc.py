"""``glmgym gc``: what became of each thing that carries our name, as lines or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
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
    for thing in things:  # a line each, however long: paths are there to be copied
        line = Text(f"{thing.kind:<9} {age(thing.age_s):>6}  ")
        line.append(f"{thing.result:<12}", STYLES[thing.result])
        line.append(f"  {thing.id}")
        if thing.owner not in thing.id:
            line.append(f"  of {thing.owner}")
        if thing.reason:
            line.append(f": {thing.reason}")
        console.print(line, soft_wrap=True)
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

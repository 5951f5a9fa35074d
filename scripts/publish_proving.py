"""Brings ``docs/proving_ground`` up to date with a directory of ``glmgym prove all``: ``publish_proving.py RUNS``.

Copies each experiment's report, plot and numbers, and writes the index. What stands above the index is written by hand.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from glmgym_trainers.proving.experiments import EXPERIMENTS

DOCS = Path(__file__).parents[1] / "docs" / "proving_ground"
FILES = ("report.md", "plot.png", "results.json")


def rows(docs: Path) -> Iterator[str]:
    """A line of the index per claim, experiments in their own order."""
    for name in EXPERIMENTS:
        for claim in json.loads((docs / name / "results.json").read_text())["claims"]:
            low, high = claim["interval"]
            says = ("**gate** " if claim["gate"] else "") + claim["says"]
            number = f"{claim['mean']:+.3f} ({low:+.3f} to {high:+.3f})"
            yield f"| [`{name}`]({name}/report.md) | {says} | {number} | {claim['holds']} |"


def main(runs: Path) -> None:
    for name in EXPERIMENTS:
        (DOCS / name).mkdir(exist_ok=True)
        for file in FILES:
            shutil.copyfile(runs / name / file, DOCS / name / file)
    page = DOCS / "README.md"
    above, table = page.read_text().split("\n|", 1)
    heading = table.splitlines()[:2]
    page.write_text("\n".join([above, f"|{heading[0]}", heading[1], *rows(DOCS), ""]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RUNS, the directory that glmgym prove all --out RUNS wrote")
    main(Path(sys.argv[1]))

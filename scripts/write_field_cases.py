"""Brings the last column of ``docs/field_cases.md`` up to date: the tests whose docstrings cite each case.

The case's id, source and kind are written by hand; a cited case without a row is an error that names its tests.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "field_cases.md"


def cited(tests: Path) -> dict[str, list[str]]:
    """``file::test`` in alphabetical order, by the case id in the test's docstring."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(tests.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                for case in re.findall(r"\b([TPOSXHE]\d)\b", ast.get_docstring(node) or ""):
                    found[case].add(f"{path.name}::{node.name}")
    return {case: sorted(names) for case, names in found.items()}


def main() -> int:
    tests = cited(ROOT / "tests")
    table, *rest = PAGE.read_text().split("## Sandbox hazards")
    lines = table.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|")) + 2
    for index in range(first, len(lines)):
        if lines[index].startswith("|"):
            cells = [cell.strip() for cell in lines[index].strip("|").split("|")]
            cells[3] = ", ".join(f"`{name}`" for name in tests.pop(cells[0], []))
            lines[index] = f"| {' | '.join(cells)} |"
    PAGE.write_text("## Sandbox hazards".join(["\n".join(lines) + "\n", *rest]))
    for case, names in tests.items():
        print(f"{case} has no row in {PAGE.relative_to(ROOT)}; cited by {', '.join(names)}", file=sys.stderr)
    return 1 if tests else 0


if __name__ == "__main__":
    sys.exit(main())

"""Brings the last column of ``docs/field_cases.md`` up to date: the tests and checks whose docstrings cite each case.

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
SOURCES = (ROOT / "tests", ROOT / "sandboxes" / "glmgym_sandboxes" / "selfcheck")


def cited() -> dict[str, list[str]]:
    """``file::test`` or ``selfcheck/file::check`` in alphabetical order, by the case id in its docstring."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in SOURCES:
        is_package = source.name != "tests"
        for path in sorted(source.glob("*.py")):
            file = f"{source.name}/{path.name}" if is_package else path.name
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                    _is_check(node) if is_package else node.name.startswith("test")
                ):
                    for case in re.findall(r"\b([TPOSXHE]\d)\b", ast.get_docstring(node) or ""):
                        found[case].add(f"{file}::{node.name}")
    return {case: sorted(names) for case, names in found.items()}


def _is_check(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a rule of the sandboxes' self-check, which our tests run over each backend."""
    return any(
        isinstance(made_by, ast.Call) and isinstance(made_by.func, ast.Name) and made_by.func.id == "check"
        for made_by in function.decorator_list
    )


def main() -> int:
    tests = cited()
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

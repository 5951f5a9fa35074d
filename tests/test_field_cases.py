"""The page of field cases and the tests that cite them say the same."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "field_cases.md").read_text()
NEEDED = ["T1", "T2", "T3", "T5", "T6", "T7", "P1", "P4", "O1", "O2", "O3", "O4", "S1", "X1", "X2", "X3", "X4"]


def _cited() -> dict[str, set[str]]:
    """Tests by the case id in their docstring."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                for case in re.findall(r"\b([TPOSXHE]\d)\b", ast.get_docstring(node) or ""):
                    found[case].add(f"{path.name}::{node.name}")
    return found


def test_the_page_lists_exactly_the_tests_that_cite_a_case() -> None:
    rows = re.findall(r"^\| ([TPOSXHE]\d) \|.*\| (.+) \|$", PAGE, re.MULTILINE)
    listed = {case: set(re.findall(r"`([^`]+)`", tests)) for case, tests in rows}
    cited = _cited()
    wrong = {
        case: {
            "to add": sorted(cited[case] - listed.get(case, set())),
            "gone": sorted(listed.get(case, set()) - cited[case]),
        }
        for case in {*cited, *listed}
        if cited[case] != listed.get(case, set())
    }
    assert not wrong, f"docs/field_cases.md: {wrong}"
    assert set(NEEDED) <= set(listed)


def test_every_test_named_for_a_hazard_exists() -> None:
    names = re.findall(r"`(\w+\.py)::(\w+)`", PAGE.split("## Sandbox hazards")[1])
    assert len(names) >= 15
    for file, name in names:
        assert f"def {name}(" in (TESTS / file).read_text(), f"{file}::{name}"

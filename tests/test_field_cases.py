"""The page of field cases and the tests that cite them say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from glmgym_sandboxes import selfcheck
from glmgym_sandboxes.selfcheck import CHECKS
from scripts.write_field_cases import cited as citations

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "field_cases.md").read_text()
NEEDED = ["T1", "T2", "T3", "T5", "T6", "T7", "P1", "P4", "O1", "O2", "O3", "O4", "S1", "X1", "X2", "X3", "X4"]


def _rows() -> list[list[str]]:
    """Id, source, kind and tests of each case on the page."""
    table = PAGE.split("## Sandbox hazards")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_lists_exactly_the_tests_that_cite_a_case() -> None:
    listed = {case: set(re.findall(r"`([^`]+)`", tests)) for case, _, _, tests in _rows()}
    cited = {case: set(names) for case, names in citations().items()}
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


def test_a_case_stands_once_with_its_source_and_its_kind() -> None:
    rows = _rows()
    assert len({case for case, *_ in rows}) == len(rows)
    for case, source, kind, _ in rows:
        assert source, case
        assert len(kind.split()) >= 5, case  # a sentence of our own, not a label


def test_every_contract_that_proves_a_case_is_run() -> None:
    """A contract's file collects nothing by itself: a ``Test...`` class of a test module must inherit its classes."""
    modules = [ast.parse(path.read_text()) for path in TESTS.glob("test_*.py")]
    bases = {
        base.id: node.name
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    for file in ("engine_contract.py", "sandbox_contract.py"):
        names = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.ClassDef)}
        assert names <= set(bases), file
    cited = {test for tests in citations().values() for test in tests}
    elsewhere = {test for test in cited if not test.startswith(("test_", "engine_contract.py", "selfcheck/"))}
    assert elsewhere == set()
    checks = {check.name for check in CHECKS}  # which the sandboxes' contract runs, all of them
    assert {test.split("::")[1] for test in cited if test.startswith("selfcheck/")} <= checks


def test_every_test_named_for_a_hazard_exists() -> None:
    names = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.split("## Sandbox hazards")[1])
    assert len(names) >= 15
    for file, name in names:
        folder = TESTS if "/" not in file else Path(selfcheck.__file__).parents[1]
        assert f"def {name}(" in (folder / file).read_text(), f"{file}::{name}"

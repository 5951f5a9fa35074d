"""Runs the program on other books than the example: order, exact sums, line numbers, status, strict fields."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(tmp_path: Path, book: str, *arguments: str) -> tuple[str, str, int]:
    (tmp_path / "book").write_text(book)
    argv = [sys.executable, "-I", "/work/ledger.py", str(tmp_path / "book"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, cwd=tmp_path)
    return done.stdout, done.stderr, done.returncode


def test_a_clean_book(tmp_path: Path) -> None:
    book = "".join(f"2025-03-{day:02d} pens 0.10\n" for day in range(1, 31)) + "2025-04-01 ink 7\n"
    assert run(tmp_path, book, "balance") == ("ink 7.00\npens 3.00\n", "", 0)
    assert run(tmp_path, book, "balance", "pens") == ("pens 3.00\n", "", 0)
    assert run(tmp_path, book, "balance", "paper") == ("", "", 0)
    assert run(tmp_path, book, "month", "2025-03") == ("2025-03 3.00 in 30 entries\n", "", 0)


def test_sums_are_exact_beyond_a_double(tmp_path: Path) -> None:
    book = "2025-01-01 a 90071992547409.93\n" * 3
    assert run(tmp_path, book, "balance") == ("a 270215977642229.79\n", "", 0)


def test_comments_and_notes(tmp_path: Path) -> None:
    book = "# 2025-01-01 a 5\n   \n#more\n2025-01-02 a 1.5 #half # and more\n2025-01-02 a -1.50 #\n"
    assert run(tmp_path, book, "balance") == ("a 0.00\n", "", 0)


@pytest.mark.parametrize(
    "line",
    [
        "2025-02-29 a 1",
        "2025-13-01 a 1",
        "20250101 a 1",
        "2025-1-1 a 1",
        "2025-01-01 a",
        "2025-01-01 a 1 2",
        "2025-01-01 a nan",
        "2025-01-01 a inf",
        "2025-01-01 a 1e3",
        "2025-01-01 a 1.234",
        "2025-01-01 a 1_000",
        "2025-01-01 a 1,5",
    ],
)
def test_bad_entries_are_reported_and_skipped(tmp_path: Path, line: str) -> None:
    book = f"# first\n2024-02-29 a 1\n{line}\n2024-02-29 a 2\n"
    assert run(tmp_path, book, "balance") == ("a 3.00\n", "line 3: bad entry\n", 1)
    assert run(tmp_path, book, "month", "2024-02") == ("2024-02 3.00 in 2 entries\n", "line 3: bad entry\n", 1)


def test_months_match_whole(tmp_path: Path) -> None:
    book = "2026-01-03 a 1\n2026-10-03 a 2\n2026-12-03 a 4\n"
    assert run(tmp_path, book, "month", "2026-10") == ("2026-10 2.00 in 1 entries\n", "", 0)
    assert run(tmp_path, book, "month", "2026-1") == ("2026-1 0.00 in 0 entries\n", "", 0)

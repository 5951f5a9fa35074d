"""Types, values and the view are compared with the verifier's own reading of the file."""

import csv
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MATERIAL = Path(__file__).parent / "material/orders.csv"


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    assert Path("/work/shop.db").is_file()
    connection = sqlite3.connect("file:/work/shop.db?mode=ro", uri=True)
    yield connection
    connection.close()


def expected() -> list[tuple[Any, ...]]:
    rows: dict[int, tuple[Any, ...]] = {}
    with MATERIAL.open(newline="", encoding="utf-8") as file:
        for number, date, customer, amount, paid, note in list(csv.reader(file, delimiter=";"))[1:]:
            day, month, year = date.split(".")
            cents = int(amount.replace(".", "").replace(",", "")) if amount else None
            state = {"ja": 1, "nein": 0, "": None}[paid]
            rows[int(number)] = (int(number), f"{year}-{month}-{day}", customer, cents, state, note or None)
    return sorted(rows.values())


def test_the_columns_are_as_asked(database: sqlite3.Connection) -> None:
    columns = [row[1:4] + row[5:] for row in database.execute("PRAGMA table_info(orders)")]
    assert [(name, kind.upper(), key) for name, kind, _, key in columns] == [
        ("id", "INTEGER", 1),
        ("day", "TEXT", 0),
        ("customer", "TEXT", 0),
        ("cents", "INTEGER", 0),
        ("paid", "INTEGER", 0),
        ("note", "TEXT", 0),
    ]
    assert [required for name, _, required, _ in columns if name in ("day", "customer")] == [1, 1]


def test_the_values_are_exact_and_typed(database: sqlite3.Connection) -> None:
    assert database.execute("SELECT type FROM sqlite_master WHERE name = 'orders'").fetchall() == [("table",)]
    assert database.execute("SELECT * FROM orders ORDER BY id").fetchall() == expected()
    kinds = database.execute("SELECT DISTINCT typeof(id), typeof(cents), typeof(paid) FROM orders").fetchall()
    assert {kind for row in kinds for kind in row} == {"integer", "null"}


def test_the_view_follows_the_table(database: sqlite3.Connection) -> None:
    assert database.execute("SELECT type FROM sqlite_master WHERE name = 'monthly'").fetchall() == [("view",)]
    months: dict[str, list[int]] = {}
    for _, day, _, cents, paid, _ in expected():
        month = months.setdefault(day[:7], [0, 0])
        month[0] += 1
        month[1] += (cents or 0) if paid else 0
    view = database.execute("SELECT month, orders, cents FROM monthly").fetchall()
    assert view == [(month, *figures) for month, figures in sorted(months.items())]


def test_the_view_is_computed_from_the_table(database: sqlite3.Connection) -> None:
    copy = sqlite3.connect(":memory:")
    database.backup(copy)
    copy.execute("DELETE FROM orders")
    copy.execute(
        "INSERT INTO orders VALUES (1, '1999-12-31', 'A', 250, 0, NULL), (2, '1999-12-01', 'B', NULL, 1, NULL)"
    )
    assert copy.execute("SELECT month, orders, cents FROM monthly").fetchall() == [("1999-12", 2, 0)]

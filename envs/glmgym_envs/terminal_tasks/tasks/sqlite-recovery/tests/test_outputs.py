"""All committed rows, an index that agrees with the table, and no need of a log."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

ROWS = [tuple(row) for row in json.loads((Path(__file__).parent / "rows.json").read_text("utf-8"))]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    shutil.copy("/work/readings.db", tmp_path / "readings.db")
    connection = sqlite3.connect(tmp_path / "readings.db")
    yield connection
    connection.close()


def test_every_committed_row_is_there(database: sqlite3.Connection) -> None:
    assert database.execute("SELECT * FROM readings NOT INDEXED ORDER BY id").fetchall() == ROWS


def test_the_index_gives_the_same_rows(database: sqlite3.Connection) -> None:
    query = "SELECT id FROM readings INDEXED BY by_sensor WHERE sensor = ? AND value > 0 ORDER BY value, id"
    for sensor in ("north", "south", "east", "west"):
        wanted = sorted((row[2], row[0]) for row in ROWS if row[1] == sensor and row[2] > 0)
        assert [id for (id,) in database.execute(query, (sensor,))] == [id for _, id in wanted]


def test_the_database_is_sound_and_alone(database: sqlite3.Connection) -> None:
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_the_schema_is_as_declared(database: sqlite3.Connection) -> None:
    columns = [row[1:] for row in database.execute("PRAGMA table_info(readings)")]
    assert columns == [
        ("id", "INTEGER", 0, None, 1),
        ("sensor", "TEXT", 1, None, 0),
        ("value", "REAL", 1, None, 0),
        ("note", "TEXT", 0, None, 0),
    ]
    assert [row[2] for row in database.execute("PRAGMA index_info(by_sensor)")] == ["sensor", "value"]
    assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (2,)


def test_what_was_salvaged_is_untouched() -> None:
    material = Path(__file__).parent / "material/salvage"
    kept = {path.name: path.read_bytes() for path in Path("/work/salvage").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in material.iterdir()}

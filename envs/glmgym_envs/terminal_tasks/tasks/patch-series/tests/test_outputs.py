"""The tree is exactly what the series gives."""

from pathlib import Path

PROJECT = Path("/work/project")


def text() -> str:
    lines = [f"line {number}" for number in range(1, 31)]
    lines[4], lines[11] = "line five", "line twelve"
    lines.insert(20, "line 20b")
    lines.remove("line 28")
    return "\n".join(lines)


def test_the_tree_is_what_the_series_gives() -> None:
    files = {str(path.relative_to(PROJECT)): path.read_bytes() for path in PROJECT.rglob("*") if path.is_file()}
    assert files == {
        "README": b"A project.\n",
        "src/new file.txt": b"brand new\n",
        "src/text.txt": text().encode(),
        "src/win.ini": b"alpha\r\nBETA\r\ngamma\r\n",
    }

from pathlib import Path

COUNTS = Path("/app/counts.txt")


def test_there():
    assert COUNTS.is_file()


def test_right():
    assert COUNTS.read_text() == "a.txt: 3\nb.txt: 3\n"

"""Builds in fresh trees with the verifier's own mk.py and other contents; counts what each change rebuilds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MATERIAL = Path(__file__).parent / "material/book"
INPUTS = {
    "front.txt": "Front\n",
    "VERSION": "9\n",
    "render.sh": 'sed -f style.sed "$1"\necho "$1" >> rendered.log\n',
    "style.sed": "s/a/A/\n",
    "src/ch1.md": "a one\n",
    "src/ch2.md": "a two\n",
    "src/ch3.md": "a three\n",
}
BOOK = "Front\nA one\nA two\nA three\nversion: 9\n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    shutil.copy("/work/book/Makefile", tmp_path)
    shutil.copy(MATERIAL / "mk.py", tmp_path)
    for name, text in INPUTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mk(book: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-B", "mk.py", *targets], cwd=book, capture_output=True, text=True, timeout=30
    )
    # What is built is younger than what it was built from, and all is older than the change that a test makes next.
    for path in book.rglob("*"):
        moment = 1_750_000_000 if path.parent.name == "out" else 1_700_000_000
        os.utime(path, (moment, moment))
    return done


def rendered(book: Path) -> list[str]:
    log = book / "rendered.log"
    names = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(names)


def test_a_first_run_builds_everything(book: Path) -> None:
    done = mk(book)
    assert done.returncode == 0, done.stderr
    assert (book / "out/book.txt").read_text() == BOOK
    assert (book / "out/words.txt").read_text().split() == ["9"]


def test_a_second_run_does_nothing(book: Path) -> None:
    mk(book)
    rendered(book)
    done = mk(book)
    assert (done.returncode, done.stdout) == (0, "mk: nothing to be done\n")
    assert rendered(book) == []


@pytest.mark.parametrize(
    ("name", "text", "again", "expected"),
    [
        ("src/ch2.md", "a new chapter\n", ["src/ch2.md"], BOOK.replace("A two", "A new chapter")),
        ("front.txt", "New front\n", [], BOOK.replace("Front", "New front")),
        ("VERSION", "10\n", [], BOOK.replace("9", "10")),
        ("style.sed", "s/a/AA/\n", ["src/ch1.md", "src/ch2.md", "src/ch3.md"], BOOK.replace("A ", "AA ")),
        ("render.sh", 'cat "$1"\necho "$1" >> rendered.log\n', ["src/ch1.md", "src/ch2.md", "src/ch3.md"], None),
    ],
)
def test_a_change_rebuilds_what_depends_on_it(
    book: Path, name: str, text: str, again: list[str], expected: str | None
) -> None:
    mk(book)
    rendered(book)
    (book / name).write_text(text)
    done = mk(book)
    assert done.returncode == 0, done.stderr
    assert rendered(book) == again
    assert (book / "out/book.txt").read_text() == (expected or BOOK.replace("A ", "a "))
    words = len((book / "out/book.txt").read_text().split())
    assert (book / "out/words.txt").read_text().split() == [str(words)]
    assert mk(book).stdout == "mk: nothing to be done\n"


def test_clean_always_cleans(book: Path) -> None:
    mk(book)
    (book / "clean").touch()
    assert mk(book, "clean").returncode == 0
    assert not (book / "out").exists()
    assert mk(book, "clean").returncode == 0
    assert all((book / name).exists() for name in INPUTS)


def test_a_target_without_a_source_fails(book: Path) -> None:
    assert mk(book, "out/ch4.txt").returncode != 0

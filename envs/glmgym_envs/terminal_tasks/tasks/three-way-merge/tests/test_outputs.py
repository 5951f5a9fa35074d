"""The merged tree is exactly that of the rules."""

from pathlib import Path

MERGED = Path("/work/merged")
APP = """[server]
host = two
port = 8080

[paths]
root = /srv
cache = /var/cache

[mail]
from = a@example.org
size = 50
"""


def test_every_file_is_merged_by_the_rules() -> None:
    files = {str(path.relative_to(MERGED)): path.read_text() for path in MERGED.rglob("*") if path.is_file()}
    assert files == {
        "app.ini": APP,
        "words.txt": "apricot\nbean\ncorn\nelder\nfig\ngrape\nhazelnut\niris\n",
        "same.txt": "y\n",
        "kept.txt": "k2\n",
        "new-mine.txt": "nm\n",
        "new-theirs.txt": "nt\n",
        "both-new.txt": "same new\n",
        "prose.txt": "a\nB mine\nc\nd\ne\n",
    }


def test_the_conflicts_are_named() -> None:
    assert Path("/work/conflicts.txt").read_text().split() == ["app.ini", "kept.txt", "prose.txt"]

"""Which names share an inode, what each name holds, and what was saved."""

import os
import stat
from pathlib import Path

import pytest

PHOTOS = Path("/work/photos")
ONE, TWO, THREE = "picture one, ten times", "picture two, ten times", "picture three"
GROUPS = [  # names that are one file at the end, in bytewise order
    ["a/one.jpg", "b/two.jpg", "c d/copy of one.jpg", "c d/new\nline.jpg"],
    ["e/E.jpg", "e/same-size.jpg"],
    ["a/private.jpg", "b/private.jpg"],
    ["e/ space", "e/-dash", "e/originals"],
    ["a/linked2", "b/linked3", "e/linked1"],
]
ALONE = ["a/only.jpg", "a/empty1", "b/empty2", "originals/one.jpg", "b/originals/three.jpg", "e/three.jpg"]
FILES = {  # content, mode, modification time
    "a/one.jpg": (ONE, 0o644, 1700000200),
    "e/E.jpg": (TWO, 0o644, 1700000600),
    "a/private.jpg": (ONE, 0o600, 1700000700),
    "a/only.jpg": ("alone", 0o644, 1700000900),
    "a/empty1": ("", 0o644, 1700001000),
    "b/empty2": ("", 0o644, 1700001100),
    "originals/one.jpg": (ONE, 0o644, 1700001200),
    "b/originals/three.jpg": (THREE, 0o644, 1700001300),
    "e/three.jpg": (THREE, 0o644, 1700001400),
    "e/ space": ("dash content", 0o644, 1700001600),
    "a/linked2": ("linked already", 0o644, 1700001800),
}


def test_each_group_is_one_file() -> None:
    inodes = [{os.lstat(PHOTOS / name).st_ino for name in group} for group in GROUPS]
    assert [len(group) for group in inodes] == [1] * len(GROUPS)
    singles = [{os.lstat(PHOTOS / name).st_ino} for name in ALONE]
    assert len(set.union(*inodes, *singles)) == len(GROUPS) + len(ALONE)


@pytest.mark.parametrize("name", FILES)
def test_contents_modes_and_times(name: str) -> None:
    status = os.lstat(PHOTOS / name)
    assert ((PHOTOS / name).read_text(), stat.S_IMODE(status.st_mode), int(status.st_mtime)) == FILES[name]


def test_nothing_came_or_went() -> None:
    names = {str(path.relative_to(PHOTOS)) for path in PHOTOS.rglob("*") if path.is_symlink() or path.is_file()}
    assert names == {*sum(GROUPS, ALONE), "a/symlink.jpg", "b/symlink.jpg"}
    assert (os.readlink(PHOTOS / "a/symlink.jpg"), os.readlink(PHOTOS / "b/symlink.jpg")) == ("one.jpg", "two.jpg")


def test_the_saved_bytes() -> None:
    saved = 3 * len(ONE) + len(TWO) + len(ONE) + 2 * len("dash content") + len("linked already")
    assert Path("/work/saved.txt").read_text().strip() == str(saved)

"""The restored tree is exactly the site of the third day."""

from pathlib import Path

RESTORED = Path("/work/restored")
SITE = {
    "assets/mark.svg": "<svg/>\n",
    "conf/site.ini/main": "title=B\n",
    "index.html": "<h1>Start</h1>\n",
    "posts/name with space.md": "space\n",
    "posts/one.md": "one v2\n",
    "posts/three.md": "three v2\n",
    "posts/two.md": "two again\n",
}


def test_the_tree_is_that_of_the_third_day() -> None:
    files = {str(path.relative_to(RESTORED)): path.read_text() for path in RESTORED.rglob("*") if path.is_file()}
    assert files == SITE


def test_no_directory_is_left_over() -> None:
    directories = {str(path.relative_to(RESTORED)) for path in RESTORED.rglob("*") if path.is_dir()}
    assert directories == {"assets", "conf", "conf/site.ini", "posts"}


def test_the_order() -> None:
    assert Path("/work/order.txt").read_text().split() == ["k3.tgz", "a9.tgz", "z1.tgz", "f5.tgz"]

"""Every mode in the tree, the contents, the links, and what lies outside."""

import os
import stat
from pathlib import Path

import pytest

PROJECT = Path("/work/project")
MODES = {
    ".": 0o2775,
    "src": 0o2775,
    "src/deep": 0o2775,
    ".hidden": 0o2775,
    "with space": 0o2775,
    "new\nline": 0o2775,
    "private": 0o2700,
    "private/sub": 0o2700,
    "src/main.c": 0o664,
    "src/run": 0o775,
    "with space/tool.py": 0o775,
    "with space/not-a-script.sh": 0o664,
    "new\nline/a\nb.txt": 0o664,
    "src/deep/server.key": 0o600,
    ".hidden/cert.pem": 0o600,
    ".hidden/.dotfile": 0o664,
    "private/notes": 0o600,
    "private/sub/job": 0o700,
    "src/deep/short": 0o664,
    "src/deep/empty": 0o664,
}
LINKS = {"src/link": "/srv/outside/target", "linkdir": "/srv/outside", "alias": "src/run"}
CONTENTS = {
    "src/run": "#!/bin/sh\necho hi\n",
    "private/notes": "secret\n",
    "src/deep/empty": "",
    "src/main.c": "int main;\n",
}


@pytest.mark.parametrize("name", MODES)
def test_modes(name: str) -> None:
    assert oct(stat.S_IMODE(os.lstat(PROJECT / name).st_mode)) == oct(MODES[name])


def test_nothing_came_or_went() -> None:
    names = {str(path.relative_to(PROJECT)) for path in PROJECT.rglob("*")}
    assert names == {name for name in [*MODES, *LINKS] if name != "."}


def test_links_and_contents_are_untouched() -> None:
    assert {name: os.readlink(PROJECT / name) for name in LINKS} == LINKS
    assert {name: (PROJECT / name).read_text() for name in CONTENTS} == CONTENTS


def test_what_lies_outside_keeps_its_mode() -> None:
    assert stat.S_IMODE(os.lstat("/srv/outside").st_mode) == 0o750
    assert stat.S_IMODE(os.lstat("/srv/outside/target").st_mode) == 0o640

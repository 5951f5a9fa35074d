"""Every link, read and resolved; then the whole tree is copied elsewhere and the links are run there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

APPS = Path("/work/apps")
LINKS = {
    "grow": "grow-1.9",
    "grow-1.2": "grow-1.2",
    "grow-old": "grow-1.10",
    "elder": "grow-1.10",
    "shrink": "shrink-3.0",
    "shrink-stable": "shrink-2.0",
    "shrink-2": "shrink-2.0",
    "turn": "turn-0.4",
    "turn-alias": "turn-0.4",
    "wave (beta)": "wave-5.0.1",
    "wave": "wave-5.0.1",
    "new-tool": "new-tool-7.1",
}
STORE = [
    "grow-1.10",
    "grow-1.2",
    "grow-1.9",
    "new-tool-7.1",
    "shrink-2.0",
    "shrink-3.0",
    "turn-0.4",
    "wave-5",
    "wave-5.0.1",
]


def test_the_links_are_the_right_ones() -> None:
    assert {path.name for path in (APPS / "bin").iterdir()} == {*LINKS, "local-script"}
    assert (APPS / "bin/local-script").read_text() == "#!/bin/sh\necho local\n"
    assert not (APPS / "bin/local-script").is_symlink()


@pytest.mark.parametrize("name", LINKS)
def test_each_link_is_relative_and_direct(name: str) -> None:
    release = LINKS[name]
    target = os.readlink(APPS / "bin" / name)
    program = release.rpartition("-")[0]
    assert os.path.normpath(f"bin/{target}") == f"store/{release}/bin/{program}"
    assert not target.startswith("/")


def test_the_links_work_where_the_tree_is_moved_to(tmp_path: Path) -> None:
    shutil.copytree(APPS, tmp_path / "moved", symlinks=True)
    for name, release in LINKS.items():
        printed = subprocess.run(
            ["/bin/sh", tmp_path / "moved/bin" / name], capture_output=True, text=True, timeout=10, cwd="/"
        ).stdout
        assert printed == release[::-1].replace("-", " ", 1)[::-1] + "\n"


def test_the_store_is_as_it_was() -> None:
    assert sorted(path.name for path in (APPS / "store").iterdir()) == STORE
    for release in STORE:
        program, _, version = release.rpartition("-")
        assert (APPS / f"store/{release}/bin/{program}").read_text() == f"#!/bin/sh\necho {program} {version}\n"

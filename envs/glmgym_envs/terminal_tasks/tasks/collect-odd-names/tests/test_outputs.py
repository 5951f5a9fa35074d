"""Runs the script on trees of hostile names, with relative and absolute arguments."""

import os
import subprocess
from pathlib import Path

import pytest

NAMES = [
    b"a.log",
    b"sub dir/b.LOG",
    b"line\nbreak/c\n.log",
    b"-n.log",
    b"--/-rf.log",
    b"star*/?[x].log",
    b'quote\'s "d".log',
    b"back\\slash\\n.log",
    b".hidden/.log",
    b"100%/%2F.log",
    b"latin\xe9.log",
    b" lead and trail .log",
    b"$(touch owned).Log",
    b"dir.log/inner.log",
]
OTHERS = [b"a.log.txt", b"log", b"alog", b"x.lo", b"c.log\n"]


def run(cwd: Path, *arguments: bytes | str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["/bin/bash", "/work/collect.sh", *arguments], cwd=cwd, capture_output=True, timeout=20)


def plant(root: Path) -> None:
    for name in [*NAMES, *OTHERS]:
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"content of " + name)
    os.symlink("a.log", root / "link.log")
    os.symlink(".", root / "loop.log")


def held(root: Path) -> dict[bytes, bytes]:
    directory = os.fsencode(root)
    return {name: open(os.path.join(directory, name), "rb").read() for name in os.listdir(directory)}


def expected() -> dict[bytes, bytes]:
    return {name.replace(b"%", b"%25").replace(b"/", b"%2F"): b"content of " + name for name in NAMES}


@pytest.mark.parametrize(
    ("source", "target"),
    [("source", "target"), ("a source\n", "a\ntarget/deep er"), ("-source", "-target"), ("*", "?"), ("-L", "-")],
)
def test_relative_names(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / source).mkdir()
    plant(tmp_path / source)
    done = run(tmp_path, source, target)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"%d\n" % len(NAMES), b"")
    assert held(tmp_path / target) == expected()
    assert not (tmp_path / "owned").exists()


def test_absolute_names_and_a_target_inside(tmp_path: Path) -> None:
    source = tmp_path / "s"
    source.mkdir()
    plant(source)
    (source / "out").mkdir()
    (source / "out/a.log").write_text("old")
    (source / "out/stays.log").write_text("stays")
    done = run(Path("/"), f"{source}/", str(source / "out"))
    assert (done.returncode, done.stdout) == (0, b"%d\n" % len(NAMES))
    assert held(source / "out") == {**expected(), b"stays.log": b"stays"}
    again = run(source, ".", "out")
    assert (again.returncode, again.stdout) == (0, b"%d\n" % len(NAMES))
    assert held(source / "out") == {**expected(), b"stays.log": b"stays"}


def test_nothing_to_collect(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run(tmp_path, "empty", "target")
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert held(tmp_path / "target") == {}


@pytest.mark.parametrize("arguments", [("nowhere", "target"), ("file", "target"), ("dir",), (), ("dir", "target", "x")])
def test_wrong_use(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert not (tmp_path / "target").exists()

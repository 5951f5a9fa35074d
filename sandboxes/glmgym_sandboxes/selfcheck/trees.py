"""Checks of whole directories, in and out, and of forks: what is kept, what is refused, what a refusal leaves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmgym.sandbox import BoxFileError, Limits, Sandbox
from glmgym_sandboxes.selfcheck.check import Subject, check, equal, holds, refused
from glmgym_sandboxes.selfcheck.files import ALL_BYTES
from glmgym_sandboxes.selfcheck.observe import bash, count, new_mark, number, until

ODD_NAMES = ("\udcff\udcfe", "line\nbreak", " ", "-rf", "Name", "name")  # the first stands for two bytes, no UTF-8
TRICKS = (  # made in an otherwise good tree, and what the refusal names
    ("ln -s / out", "out"),
    ("mkdir sub; ln -s ../../../etc/passwd sub/up", "sub/up"),
    ("mkfifo pipe", "pipe"),
    ("python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"", "sock"),
    ("touch shut; chmod 0 shut", "shut"),
    ("mkdir -m 0 shut", "shut"),
    ("truncate -s 1T huge", "huge"),
    ("for i in $(seq 130); do mkdir d; cd d; done", "d/d"),
)


@check("trees", runs_commands=False)
async def a_tree_comes_back_as_it_went_in(subject: Subject) -> None:
    """X3, hazard 14: bytes and odd names are kept, files of any size go through, the right to execute stays."""
    box = await subject.open()
    with _directory() as here:
        files = {"deep/er/all": ALL_BYTES, "none": b"", "big": os.urandom(3 << 20), "deep/tool": b"#!/bin/sh"}
        _make(here / "in", files | {name: b"odd" for name in ODD_NAMES})
        (here / "in/empty").mkdir()
        (here / "in/deep/tool").chmod(0o751)
        await box.put_tree(here / "in", "trees/one")  # relative to the working directory
        await box.get_tree("/work/trees/one", here / "made/out")
        seen, expected = tree_of(here / "made/out"), tree_of(here / "in")
        equal(sorted(map(ascii, seen)), sorted(map(ascii, expected)), "the names")
        equal(seen == expected, True, "all contents the same")
        modes = {name: _mode(here / "made/out" / name) for name in ("deep/tool", "none", ".")}
        equal(modes, {"deep/tool": 0o755, "none": 0o644, ".": 0o755}, "modes")


@check("trees", runs_commands=False)
async def a_tree_replaces_what_has_its_names_and_leaves_the_rest(subject: Subject) -> None:
    """A second tree is laid over the first; a symlink in the way is replaced, never followed."""
    box = await subject.open()
    with _directory() as here:
        _make(here / "first", {"both": b"first"})
        (here / "first/way").symlink_to("both")
        _make(here / "second", {"both": b"second", "way": b"a file now"})
        await box.put_tree(here / "first", "/work/tree")
        await box.write("/work/tree/other", b"stays")
        await box.put_tree(here / "second", "/work/tree")
        await box.get_tree("/work/tree", here / "out")
        expected = {"both": b"second", "other": b"stays", "way": b"a file now"}
        equal(tree_of(here / "out"), expected, "the two trees together")


@check("trees", runs_commands=False)
async def a_symlink_goes_in_but_does_not_come_out(subject: Subject) -> None:
    """hazard 12: refused by name, and nothing is left where the tree would have been."""
    box = await subject.open()
    with _directory() as here:
        (here / "sub").mkdir()
        (here / "sub/link").symlink_to("/etc/passwd")
        await box.put_tree(here, "/work/tree")
    await _refused_and_nothing_left(box, "/work/tree", "sub/link")


@check("trees", runs_commands=False)
async def a_tree_stops_at_its_limits(subject: Subject) -> None:
    """hazard 12: ten bytes in three files and a directory pass with limits of 10 and 4, and not with one less."""
    box = await subject.open()
    for name, data in (("a", b"12345"), ("sub/b", b"12345"), ("sub/c", b"")):
        await box.write(f"/work/tree/{name}", data)
    with _directory() as here:
        await box.get_tree("/work/tree", here / "out", max_bytes=10, max_files=4)
        equal(tree_of(here / "out"), {"a": b"12345", "sub": None, "sub/b": b"12345", "sub/c": b""}, "the tree")
    for max_bytes, max_files in ((9, 4), (10, 3), (0, 0)):
        await _refused_and_nothing_left(box, "/work/tree", "more than", max_bytes=max_bytes, max_files=max_files)


@check("trees", runs_commands=False)
async def what_cannot_be_copied_is_named(subject: Subject) -> None:
    """A missing source, a target that is there, a pipe on the way in: each is an error naming it; nothing is left."""
    box = await subject.open()
    await _refused_and_nothing_left(box, "/work/nothing", "/work/nothing")
    await box.write("/work/tree/file", b"x")
    with _directory() as here:
        (here / "here").mkdir()
        with refused(BoxFileError, "here"):
            await box.get_tree("/work/tree", here / "here")
        with refused(BoxFileError, "absent"):
            await box.put_tree(here / "absent", "/work/tree")
        os.mkfifo(here / "here/pipe")
        with refused(BoxFileError, "pipe"):
            await box.put_tree(here / "here", "/work/other")
        equal(os.listdir(here), ["here"], "what is left on this side")
    equal(await box.read("/work/tree/file"), b"x", "the file in the box")


@check("trees", runs_commands=False)
async def a_tree_larger_than_the_disk_is_an_error(subject: Subject) -> None:
    """X2: a tree that does not fit is never a success, and the box goes on."""
    box = await subject.open(limits=Limits(disk_mb=4))
    with _directory() as here:
        (here / "big").write_bytes(bytes(6 << 20))
        with refused(BoxFileError, "No space left"):
            await box.put_tree(here, "/work/tree")
    await box.write("/work/tree/big", b"small")
    equal(await box.read("/work/tree/big"), b"small", "what is written afterwards")


@check("trees")
async def put_tree_keeps_modes_symlinks_and_times(subject: Subject) -> None:
    """A read-only directory, a mode, a time and a symlink are in the box as they are here."""
    box = await subject.open()
    with _directory() as here:
        _make(here, {"shut/file": b"x"})
        (here / "shut/file").chmod(0o640)
        os.utime(here / "shut/file", (1_000_000_000, 1_000_000_000))
        (here / "shut").chmod(0o555)
        (here / "link").symlink_to("shut/file")
        await box.put_tree(here, "/work/tree")
        (here / "shut").chmod(0o755)  # or it could not be removed here
    look = await bash(box, "cd tree; stat -c '%a %Y' shut/file; stat -c %a shut; readlink link; cat link")
    equal(look.stdout, b"640 1000000000\n555\nshut/file\nx", "what the box shows of them")


@check("trees")
async def tricks_in_a_tree_are_refused_by_name(subject: Subject) -> None:
    """hazard 12: links, pipes, sockets, locked, endless and bottomless things: nothing of such a tree is taken."""
    box = await subject.open()
    for trick, named in TRICKS:
        made = await bash(box, f"chmod -R 700 tree; rm -rf tree; mkdir tree; cd tree; echo good > file; {trick}")
        equal(made.exit_code, 0, f"the exit code of {trick!r}")
        await _refused_and_nothing_left(box, "/work/tree", named)
        equal((await bash(box, "cat tree/file")).stdout, b"good\n", f"the good file beside {trick!r}")


@check("trees")
async def a_tree_that_is_a_symlink_is_refused(subject: Subject) -> None:
    """hazard 12: neither way does a symlink, or a plain file, pass for a directory."""
    box = await subject.open()
    await bash(box, "ln -s /etc tree; echo > plain")
    for path in ("/work/tree", "/work/plain"):
        await _refused_and_nothing_left(box, path, path)
        with _directory() as here, refused(BoxFileError, path):
            await box.put_tree(here, path)


@check("trees")
async def a_hard_link_is_copied_as_a_file_of_its_own(subject: Subject) -> None:
    """hazard 12: two names of one file are two files here."""
    box = await subject.open()
    await bash(box, "mkdir tree; echo one > tree/a; ln tree/a tree/b")
    with _directory() as here:
        await box.get_tree("/work/tree", here / "out")
        equal(tree_of(here / "out"), {"a": b"one\n", "b": b"one\n"}, "the tree")
        equal((here / "out/a").stat().st_nlink, 1, "the links of a file")


@check("trees")
async def a_symlink_swapped_in_during_the_walk_leads_nowhere(subject: Subject) -> None:
    """hazard 12: what is not in the tree never arrives, however the policy times its swaps."""
    box = await subject.open()
    await box.write("/work/aside/secret", b"secret")
    await box.write("/work/tree/sub/secret", b"plain")
    swap = "while :; do mv tree/sub hidden; ln -s ../aside tree/sub; rm tree/sub; mv hidden tree/sub; done"
    swapping = subject.start(bash(box, swap, timeout_s=2.0))
    refusals = 0
    with _directory() as here:
        for attempt in range(100):
            try:
                await box.get_tree("/work/tree", here / str(attempt))
            except BoxFileError:
                refusals += 1
            else:
                tree = tree_of(here / str(attempt))
                as_it_was = tree in ({"sub": None, "sub/secret": b"plain"}, {"sub": None}, {})
                holds(as_it_was, "the tree as it once was", tree)
    holds(refusals > 0, "a walk that met the symlink", "none of 100")
    equal((await swapping).timed_out, True, "the swapping to go on meanwhile")


@check("trees")
async def a_file_that_grows_while_it_is_read_has_an_end(subject: Subject) -> None:
    """Collecting a log that is being written does not go on for ever."""
    box = await subject.open()
    growing = subject.start(bash(box, "mkdir tree; while :; do echo y; done > tree/log", timeout_s=1.0))
    await until(lambda: number(bash(box, "stat -c %s tree/log || echo 0")), "bytes in the log", at_least=1)
    with _directory() as here:
        await box.get_tree("/work/tree", here / "out")
        taken = (here / "out/log").read_bytes()
        equal(taken.strip(b"y\n"), b"", "the log's lines")
        holds(len(taken) > 0, "some of the log", "nothing")
    equal((await growing).timed_out, True, "the writing to go on meanwhile")


@check("forks", runs_commands=False)
async def forks_start_with_the_files_and_go_their_own_ways(subject: Subject) -> None:
    """Siblings have the files of the box; what one of them changes shows in no other, and each outlives the others."""
    box = await subject.open()
    await box.write("/work/deep/file", ALL_BYTES)
    await box.write("/tmp/file", b"tmp")
    one, two = await subject.fork(box, 2)
    equal(len({box.id, one.id, two.id}), 3, "the number of different boxes")
    await one.write("/work/deep/file", b"one")
    await box.write("/work/late", b"late")
    equal(await two.read("/work/deep/file"), ALL_BYTES, "the file in the second sibling")
    equal(await two.read("/tmp/file"), b"tmp", "its file in /tmp")
    await box.close()
    equal(await one.read("/work/deep/file"), b"one", "the file in the first sibling")
    with refused(BoxFileError, "/work/late"):
        await two.read("/work/late")
    (again,) = await subject.fork(one, 1)
    equal(await again.read("/work/deep/file"), b"one", "the file in a sibling of a sibling")


@check("forks")
async def a_fork_has_the_files_as_they_are_and_no_process(subject: Subject) -> None:
    """Modes, times, symlinks and pipes are the same; locked files come along; sockets have nobody behind them."""
    box, mark = await subject.open(), new_mark()
    make = """
mkdir -p deep/locked /tmp/sub; echo secret > deep/locked/file; ln -s deep/locked link; ln -s /nowhere dangling
mkfifo pipe; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"; echo tmp > /tmp/sub/file
chmod 4711 /tmp/sub/file; chmod 0 deep/locked/file deep/locked; touch -d @1000000000 deep/locked /tmp/sub/file
"""
    equal((await bash(box, make)).text, "", "what making the files said")
    await bash(box, f"bash -c 'exec -a {mark} sleep 300' &")
    await until(lambda: count(box, mark), "marked processes", at_least=1)
    (sibling,) = await subject.fork(box, 1)
    look = "find . /tmp ! -type s -printf '%p %m %l' '(' -type f -printf ' %s %T@' -o -true ')' -printf '\\n' | sort"
    before, after = await bash(box, look), await bash(sibling, look)
    for line in (b"./deep/locked 0", b"/tmp/sub/file 4711  4 1000000000.0"):
        holds(line in before.stdout, f"{line!r} among the files", before.stdout)
    equal(after.text, before.text, "the files in the sibling")
    unlock = "stat -c %Y deep/locked; chmod 700 deep/locked; chmod 600 deep/locked/file; cat deep/locked/file; ls sock"
    opened = await bash(sibling, unlock)
    equal(opened.stdout, b"1000000000\nsecret\n", "the locked directory's time and its file")
    holds(opened.exit_code != 0, "no socket in the sibling", "exit code 0")
    equal((await count(box, mark), await count(sibling, mark)), (1, 0), "the process in each")


async def _refused_and_nothing_left(box: Sandbox, path: str, naming: str, **bounds: int) -> None:
    with _directory() as here:
        with refused(BoxFileError, naming):
            await box.get_tree(path, here / "out", **bounds)
        equal(os.listdir(here), [], "what is left where the tree was to go")


@contextmanager
def _directory() -> Iterator[Path]:
    """A directory of this machine that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="glmgym-check-") as path:
        yield Path(path)


def _make(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def tree_of(root: Path) -> dict[str, bytes | None]:
    """Path -> content, ``None`` for a directory, of everything below ``root``.

    Raises:
        Unmet: there is something else.
    """
    found: dict[str, bytes | None] = {}
    for path in root.rglob("*"):
        holds(not path.is_symlink() and (path.is_dir() or path.is_file()), "nothing but files and directories", path)
        found[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return found

"""Removes from a grading box what pytest or the interpreter would load by itself. Standard library only.

Its source is given to the box's isolated interpreter on the command line; the job comes as JSON on standard input, the
notes go out the same way. See ``trusted.restore``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from typing import Any

REMOVED = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "tox.ini")
SETTINGS = {"setup.cfg": b"[tool:pytest]", "pyproject.toml": b"[tool.pytest"}
PROGRAMS = ("pytest", "py.test", "python", "python3", "python3.11", "tox", "coverage")
SHADOWS = ("pytest.py", "_pytest.py", "pluggy.py")
UNCHECKED = 1  # flags of a .pyc that is loaded whatever its source says; PEP 552


def content_of(path: str) -> bytes:
    """A regular file's bytes, b"" for anything else."""
    if os.path.islink(path) or not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(1 << 22)


def is_odd_bytecode(path: str) -> bool:
    """True for compiled code that does not say that it is of the source beside it."""
    head = content_of(path)[:16]
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__":
        return True
    source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
    if len(head) < 16 or not os.path.isfile(source):
        return True
    return bool(int.from_bytes(head[4:8], "little") & UNCHECKED)


def is_of(target: str, trusted: list[str]) -> bool:
    """True if a trusted file is what ``target`` names, or lies below it."""
    return any(path == target or path.startswith(target.rstrip("/") + "/") for path in trusted)


def is_to_go(path: str) -> str | None:
    """Why a file must not stay: a sentence's end, "" if there is no more to say; ``None`` if it may."""
    name = os.path.basename(path)
    if name in REMOVED or name.endswith(".pth"):
        return ""
    if name.endswith((".pyc", ".pyo")):
        return ": compiled code that is not of its source" if is_odd_bytecode(path) else ""
    if name == "entry_points.txt" and b"pytest11" in content_of(path):
        return ": it registers a pytest plugin"
    return None


def is_worth_a_note(path: str, is_trusted: bool) -> str:
    """What a person may want to know about a file that stays; "" for nothing."""
    name = os.path.basename(path)
    if is_trusted:
        return " was changed; the trusted copy stands there now"
    if name in PROGRAMS and os.access(path, os.X_OK):
        return " is a program of that name"
    if name in SHADOWS:
        return " has the name of what runs the tests"
    if name in SETTINGS and SETTINGS[name] in content_of(path):
        return " has pytest options; they are not used"
    return ""


def sweep(job: dict[str, Any]) -> list[str]:
    """Clean the tree below ``root``; what was found that is not the repository's own."""
    root, own, copies = job["root"], job["own"], job["trusted"]
    notes: list[str] = []
    places = [os.path.join(os.path.realpath(root), below) for below in copies]
    deleted = [below for below in own if below in copies and not os.path.lexists(os.path.join(root, below))]
    notes += [f"{below} was deleted; the trusted copy stands there now" for below in deleted]
    for folder, directories, files in os.walk(root, topdown=True):
        if folder == root and ".git" in directories:
            directories.remove(".git")
        for name in [*directories, *files]:
            path = os.path.join(folder, name)
            below = os.path.relpath(path, root)
            if os.path.islink(path) and is_of(os.path.realpath(path), places):
                os.unlink(path)
                notes.append(f"removed {below}: a symlink to where trusted files go")
            elif name in files:
                known = hashlib.sha256(content_of(path)).hexdigest() in (own.get(below), copies.get(below))
                why = is_to_go(path)
                if why is not None:
                    os.unlink(path)
                    is_cache = name.endswith((".pyc", ".pyo")) and not why
                    notes += [] if known or is_cache else [f"removed {below}{why}"]
                elif not known and (what := is_worth_a_note(path, below in copies)):
                    notes.append(below + what)
    for below in copies:
        clear(root, below, notes)
    return notes


def clear(root: str, below: str, notes: list[str]) -> None:
    """Make way for a trusted file: no part of its path is a symlink, its own place is free of anything but a file."""
    path = root
    parts = below.split("/")
    for index, part in enumerate(parts):
        path = os.path.join(path, part)
        last = index == len(parts) - 1
        if os.path.islink(path) or (os.path.lexists(path) and os.path.isdir(path) == last):
            notes.append(f"removed {os.path.relpath(path, root)}: it stood in the way of {below}")
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


if __name__ == "__main__":
    print(json.dumps(sweep(json.loads(sys.stdin.buffer.read()))))

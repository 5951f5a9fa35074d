"""Files of a repository that steer its test run, kept before the policy comes and put back before grading.

An imported task runs its tests in the repository itself. What pytest loads or reads by itself there, git's own settings
(a filter may rewrite a test file while git puts it back), a module that stands before pytest's or the standard
library's on the path, and the test files that the task names are as they were at reset when the tests start.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmgym.errors import BoundaryFailure, EnvFailure, ScorerFailure
from glmgym.sandbox import BoxFileError, Sandbox
from glmgym_envs.grading.trusted import random_name

TIMEOUT_S = 60.0
MAX_BYTES = 64 << 20  # of all that is kept
# Writes a JSON object to the file that it is given: base64 by path of what steers; "" for what is no file, and for what
# only stands before others on the path.
_LOOK = r"""
import base64, json, os, sys
target, root, named = sys.argv[1], os.path.realpath(sys.argv[2]), json.loads(sys.stdin.read())
ALWAYS = {"conftest.py", "pytest.ini", ".pytest.ini", "sitecustomize.py", "usercustomize.py"}
SECTIONS = {"tox.ini": b"[pytest]", "setup.cfg": b"[tool:pytest]", "pyproject.toml": b"[tool.pytest"}
STACK = {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "attr", "attrs", "tomli", "glmgym_envs"}
STACK |= {"exceptiongroup", "unittest", "doctest", "pdb"}
library = os.path.dirname(os.__file__)
STACK |= {name.partition(".")[0] for name in os.listdir(library) + os.listdir(os.path.join(library, "lib-dynload"))}
STACK -= {"site-packages", "lib-dynload", "test", "__pycache__", "README", "LICENSE"}
GIT = (".git/config", ".git/config.worktree", ".git/info", ".git/hooks", ".git/refs/replace", ".git/shallow",
       ".git/objects/info/alternates")
found = {}
def content(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()
def add(path):
    found[os.path.relpath(path, root)] = base64.b64encode(content(path)).decode()
for folder, directories, files in os.walk(root):
    if folder == root and ".git" in directories:
        directories.remove(".git")
    for name in [*directories, *files]:
        path = os.path.join(folder, name)
        if name in ALWAYS or name.endswith(".pth") or SECTIONS.get(name, b"?" * 99) in content(path):
            add(path)
        elif folder == root and name.partition(".")[0] in STACK:
            if name in directories or name.endswith((".py", ".so", ".pyc")):
                found[name] = ""
for place in GIT:
    path = os.path.join(root, place)
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, _, names in os.walk(path):
            for name in names:
                add(os.path.join(folder, name))
    elif os.path.lexists(path):
        add(path)
for place in named:
    if os.path.lexists(os.path.join(root, place)):
        add(os.path.join(root, place))
with open(target, "w") as file:
    file.write(json.dumps(found))
"""
# Removes each path, and whatever is no real directory on the way to it.
_CLEAR = r"""
import json, os, shutil, sys
root = os.path.realpath(sys.argv[1])
for below in json.loads(sys.stdin.read()):
    path = root
    for part in below.split("/")[:-1]:
        path = os.path.join(path, part)
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)
    path = os.path.join(root, below)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
"""


@dataclass(frozen=True, slots=True)
class Steering:
    """Contents in base64, by path below ``root``."""

    root: str
    named: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


async def keep_steering(
    box: Sandbox, python: str, root: str, named: Sequence[str], left: Sequence[str] = ()
) -> Steering:
    """Read what steers the tests of the repository at ``root``; to be called while the box can be trusted.

    Args:
        named: test files that are put back as well, absolute or below ``root``.
        left: files that a solution may change.

    Raises:
        EnvFailure: it cannot be read.
    """
    return Steering(root, tuple(named), tuple(left), await _look(box, python, root, named, EnvFailure))


async def put_back(box: Sandbox, python: str, kept: Steering) -> tuple[str, ...]:
    """Make a grading box's repository steer its tests as it did at reset.

    Returns:
        A sentence for each file that was put back or removed.

    Raises:
        ScorerFailure: it cannot be done.
    """
    now = await _look(box, python, kept.root, kept.named, ScorerFailure)
    new = sorted(path for path in now if path not in kept.files and path not in kept.left)
    changed = {path for path, content in kept.files.items() if now.get(path, "") != content}
    other = sorted(changed.difference(kept.left))
    if not new and not other:
        return ()
    argv = [python, "-I", "-S", "-B", "-c", _CLEAR, kept.root]
    cleared = await box.run(argv, stdin=json.dumps([*new, *other]).encode(), cwd="/", timeout_s=TIMEOUT_S)
    if cleared.exit_code != 0:
        raise ScorerFailure(f"{kept.root} cannot be cleared for its tests: {cleared.text.strip()[-300:]}")
    for path in other:
        await box.write(posixpath.normpath(f"{kept.root}/{path}"), base64.b64decode(kept.files[path]))
    named = {posixpath.relpath(posixpath.join(kept.root, path), kept.root) for path in kept.named}
    told = [path for path in other if path not in named]  # a task's tests come anew in any case
    return (
        *(f"{path} steers the tests and was taken out" for path in new),
        *(f"{path}, which steers the tests, was put back" for path in told),
    )


async def _look(
    box: Sandbox, python: str, root: str, named: Sequence[str], failure: type[BoundaryFailure]
) -> dict[str, str]:
    place = f"/tmp/{random_name()}"
    argv = [python, "-I", "-S", "-B", "-c", _LOOK, place, root]
    result = await box.run(argv, stdin=json.dumps(list(named)).encode(), cwd="/", timeout_s=TIMEOUT_S)
    try:
        found: Any = json.loads(await box.read(place, max_bytes=MAX_BYTES))
    except (BoxFileError, ValueError):
        raise failure(f"{root} of a box cannot be looked through: {result.text.strip()[-300:]!r}") from None
    await box.run(["/bin/rm", "-f", "--", place], cwd="/")
    return {str(path): str(content) for path, content in found.items()}

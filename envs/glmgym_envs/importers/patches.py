"""Applying a diff to a repository in a box, the strictest way first. The ladder itself is ``apply.sh``.

The same script stands in the tests and the solution of imported tasks, so there is one ladder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from glmgym.errors import ScorerFailure
from glmgym.sandbox import Sandbox

APPLY = files("glmgym_envs.importers").joinpath("apply.sh").read_text("utf-8")
_NO_REPOSITORY = 3
_PLACE = "/tmp/glmgym-apply"


@dataclass(frozen=True, slots=True)
class Applied:
    """``by`` is the command that took the diff; looser ones come after stricter ones have failed."""

    by: str
    log: str


@dataclass(frozen=True, slots=True)
class NotApplied:
    """No way took the diff; the tree is as it was."""

    log: str


async def apply(box: Sandbox, path: str, diff: str, *, timeout_s: float = 60.0) -> Applied | NotApplied:
    """Apply ``diff`` to the repository at ``path``.

    Raises:
        ScorerFailure: there is no repository or no git, or it took longer than ``timeout_s``: nothing can be said
            about the diff.
    """
    await box.write(f"{_PLACE}/apply.sh", APPLY.encode())
    await box.write(f"{_PLACE}/diff", diff.encode("utf-8", "surrogateescape"))
    result = await box.run(["bash", f"{_PLACE}/apply.sh", path, f"{_PLACE}/diff"], timeout_s=timeout_s, cwd="/tmp")
    if result.timed_out or result.exit_code not in (0, 1):
        raise ScorerFailure(f"the diff could not be tried on {path}: {result.text.strip()[-500:] or 'no repository'}")
    if result.exit_code == 1:
        return NotApplied(result.text)
    said = [line for line in result.stdout.decode("utf-8", "replace").splitlines() if line.startswith("applied by: ")]
    return Applied(said[-1].removeprefix("applied by: "), result.text)


@dataclass(frozen=True, slots=True)
class Touched:
    """The files of a diff: those that it changes or removes, and those that it makes."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def touched(diff: str) -> Touched:
    """Which files a git diff touches; a renamed one is old under its old name and new under the other.

    Raises:
        ValueError: a path is quoted, or a binary file has no content in it.
    """
    old: dict[str, None] = {}
    new: dict[str, None] = {}
    for header in _headers(diff):
        match = re.match(r"diff --git a/(?P<old>.+) b/(?P<new>.+)", header[0])
        if match is None:
            raise ValueError(f"{header[0]!r}: only plain paths are read, written as a/PATH b/PATH")
        if any(line.startswith("Binary files ") for line in header):
            raise ValueError(f"{match['new']} is binary, and its content is not in the diff")
        is_new = any(line.startswith(("new file mode", "--- /dev/null")) for line in header)
        is_moved = match["old"] != match["new"]
        if not is_new:
            old[match["old"]] = None
        if is_new or is_moved:
            new[match["new"]] = None
    return Touched(tuple(old), tuple(new))


def _headers(diff: str) -> Iterator[list[str]]:
    """The lines of each file's header, up to its first hunk."""
    header: list[str] = []
    in_header = False
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            if header:
                yield header
            header, in_header = [], True
        elif line.startswith(("@@ ", "GIT binary patch")):
            in_header = False
        if in_header:
            header.append(line)
    if header:
        yield header

"""Trees of files as deterministic tars, and patches between them. Pure: bytes by path in, bytes out.

The same tree gives the same tar on every machine (order, times, owners are fixed), so a digest names its content.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

Tree = Mapping[str, bytes]  # content by path, relative, with "/"


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed tree. ``sha256`` is of the tar itself, since compressors differ between versions."""

    content: bytes  # .tar.xz
    sha256: str


def pack(tree: Tree, executable: frozenset[str] = frozenset()) -> Packed:
    """The tree as an xz-compressed tar."""
    plain = tar_of(tree, executable)
    return Packed(lzma.compress(plain, preset=9), hashlib.sha256(plain).hexdigest())


def tar_of(tree: Tree, executable: frozenset[str] = frozenset()) -> bytes:
    """The tree as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(tree[path]), 0o755 if path in executable else 0o644
            tar.addfile(member, io.BytesIO(tree[path]))
    return buffer.getvalue()


def unpack(content: bytes, sha256: str) -> bytes:
    """The tar inside.

    Raises:
        ValueError: it is not what the digest names.
    """
    plain = lzma.decompress(content)
    found = hashlib.sha256(plain).hexdigest()
    if found != sha256:
        raise ValueError(f"its tar has the digest {found}, expected {sha256}")
    return plain


def tree_of(tar: bytes, *, strip: int = 0) -> tuple[dict[str, bytes], frozenset[str]]:
    """The regular files of a tar (compressed or not) and which of them are executable.

    Args:
        strip: leading directories to drop from each name, as an sdist has one.

    Raises:
        ValueError: a name would leave the tree.
    """
    tree: dict[str, bytes] = {}
    executable: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            parts = member.name.split("/")[strip:]
            if not member.isfile() or not parts:
                continue
            if member.name.startswith("/") or ".." in parts:
                raise ValueError(f"{member.name!r} would leave the tree")
            opened = archive.extractfile(member)
            assert opened is not None
            path = "/".join(parts)
            tree[path] = opened.read()
            if member.mode & 0o100:
                executable.add(path)
    return tree, frozenset(executable)


def patch_between(before: Tree, after: Tree) -> str:
    """What ``git apply`` needs to turn ``before`` into ``after``; "" if nothing differs.

    Raises:
        ValueError: a changed file is not UTF-8 text.
    """
    parts: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            parts += [_header(path, old, new), *_hunks(path, old, new)]
    return "".join(parts)


def _header(path: str, old: bytes | None, new: bytes | None) -> str:
    lines = [f"diff --git a/{path} b/{path}\n"]
    lines += ["new file mode 100644\n"] if old is None else []
    lines += ["deleted file mode 100644\n"] if new is None else []
    return "".join(lines)


def _hunks(path: str, old: bytes | None, new: bytes | None) -> list[str]:
    names = "/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}"
    diff = difflib.unified_diff(_lines(path, old), _lines(path, new), *names)
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff]


def _lines(path: str, content: bytes | None) -> list[str]:
    # Not splitlines(): git ends a line at "\n" only, Python also at form feeds and others.
    try:
        text = (content or b"").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text, so no patch can hold it: {error}") from error
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])

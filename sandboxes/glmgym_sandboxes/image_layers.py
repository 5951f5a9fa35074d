"""The tree in a tar of a root filesystem, or in the layers of what ``docker save`` wrote; nothing in it is trusted.

Owns which members are refused, by name: those that would leave the image, lie below a symlink or file, or are of a kind
that cannot be kept. Device nodes and pipes are passed over and listed.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from glmgym.errors import ConfigError
from glmgym_sandboxes.image_tree import MAX_TIME, Entry, Tree

_WHITEOUT = ".wh."  # OCI image layer specification, "Whiteouts"
_OPAQUE = ".wh..wh..opq"
_ZSTD = b"\x28\xb5\x2f\xfd"
_DECOMPRESS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_MAX_ID = 2**32 - 2  # the kernel's; one more means "no change"


@contextlib.contextmanager
def tree_in_tar(path: Path, scratch: Path) -> Iterator[Tree]:
    """The tree in a tar, or in the layers of a ``docker save`` archive, readable while the context lasts.

    Args:
        scratch: the directory for what must be decompressed first; the files there have no names.

    Raises:
        ConfigError: this is no such file, or a member would leave the image or cannot be kept; it is named.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    with contextlib.ExitStack() as closing:
        try:
            outer = _open(closing.enter_context(path.open("rb")), path.name, scratch, closing)
            names = _layer_names(outer, path.name)
            if names is None:
                layers = [outer]
            else:
                files = [closing.enter_context(_member(outer, name, path.name)) for name in names]
                layers = [_open(file, name, scratch, closing) for file, name in zip(files, names, strict=True)]
            tree = _flatten(layers, path.name, has_whiteouts=names is not None)
            if not tree.entries:
                raise ConfigError(f"{path.name} holds no files")
            yield tree
        except _DAMAGE as error:
            raise ConfigError(f"{path.name} is not a tar, or is damaged: {error}") from error


def _open(file: IO[bytes], name: str, scratch: Path, closing: contextlib.ExitStack) -> tarfile.TarFile:
    """The tar in ``file``; decompressed to ``scratch`` first, since members are not read in their order."""
    magic = file.read(6)
    file.seek(0)
    plain = file
    decompress = next((open for start, open in _DECOMPRESS.items() if magic.startswith(start)), None)
    if decompress or magic.startswith(_ZSTD):
        plain = closing.enter_context(tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115
        if decompress:
            shutil.copyfileobj(decompress(file), plain, 1 << 20)
        else:
            _unzstd(file, plain, name)
        plain.seek(0)
    return closing.enter_context(tarfile.open(fileobj=plain, mode="r:", encoding="utf-8", errors="surrogateescape"))


def _unzstd(file: IO[bytes], plain: IO[bytes], name: str) -> None:
    program = shutil.which("zstd")
    if program is None:
        raise ConfigError(f"{name} is compressed with zstd: install it (apt-get install zstd), or decompress it before")
    with subprocess.Popen([program, "-dcq"], stdin=subprocess.PIPE, stdout=plain, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it says on stderr why it stopped reading
            shutil.copyfileobj(file, process.stdin, 1 << 20)
        said = process.stderr.read().decode("utf-8", "replace").strip()
    if process.returncode:
        raise ConfigError(f"{name} cannot be decompressed: {said}")


def _layer_names(archive: tarfile.TarFile, source: str) -> list[str] | None:
    """The layers of a ``docker save`` archive, lowest first; ``None`` if this is a root filesystem."""
    try:
        file = archive.extractfile("manifest.json")
    except KeyError:
        file = None
    if file is None:
        if "oci-layout" in archive.getnames():
            raise ConfigError(f"{source} is an OCI layout without manifest.json; make it with 'docker save'")
        return None
    try:
        images = json.load(file)
        layers = [[str(layer) for layer in image["Layers"]] for image in images]
        tags = [str(tag) for image in images for tag in image.get("RepoTags") or ()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # a file of that name in a root filesystem
    if len(layers) != 1:
        raise ConfigError(f"{source} holds {len(layers)} images ({', '.join(tags)}); save one at a time")
    return layers[0]


def _member(archive: tarfile.TarFile, name: str, source: str) -> IO[bytes]:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ConfigError(f"{source}: its manifest names the layer {name!r}, which it does not hold")
    return file


def _flatten(layers: list[tarfile.TarFile], source: str, *, has_whiteouts: bool) -> Tree:
    """What is seen through a stack of layers, lowest first."""
    entries: dict[str, Entry] = {}
    skipped: dict[str, None] = {}
    for number, layer in enumerate(layers):
        below, entries = entries, {}
        for info in layer:
            name = _inside(info.name, info, source)
            parent, _, last = name.rpartition("/")
            if not name:
                continue  # the root itself
            if has_whiteouts and last == _OPAQUE:
                _drop(below, parent, itself=False)
            elif has_whiteouts and last.startswith(_WHITEOUT):
                hidden = last.removeprefix(_WHITEOUT)
                if hidden in ("", ".", ".."):
                    _refuse(info, source, "hides nothing inside the image")
                _drop(below, f"{parent}/{hidden}".lstrip("/"))
            else:
                is_kept = not (info.ischr() or info.isblk() or info.isfifo())
                entry = _entry(info, layer, number, (entries, below), source) if is_kept else None
                if entry is None or entry.kind != tarfile.DIRTYPE:
                    for tree in (below, entries):
                        if name in tree:
                            _drop(tree, name)
                if entry is None:
                    skipped[name] = None
                else:
                    entries[name] = entry
        _check_end(layer, source)
        entries = {**below, **entries}
    return Tree(_with_parents(entries, source), tuple(sorted(skipped)))


def _entry(
    info: tarfile.TarInfo,
    layer: tarfile.TarFile,
    number: int,
    known: tuple[dict[str, Entry], ...],
    source: str,
) -> Entry:
    if info.islnk():
        target = _inside(info.linkname, info, source)
        found = next((tree[target] for tree in known if target in tree), None)
        if found is None or found.kind == tarfile.DIRTYPE:
            _refuse(info, source, f"is a hard link to {info.linkname!r}, which is no file before it")
        return found
    if not (info.isdir() or info.isreg() or info.issym()):
        _refuse(info, source, f"is of an unknown type, {info.type!r}")
    if not (0 <= info.uid <= _MAX_ID and 0 <= info.gid <= _MAX_ID):
        _refuse(info, source, f"belongs to {info.uid}:{info.gid}, which is nobody")
    if info.issym() and (not info.linkname or "\0" in info.linkname):
        _refuse(info, source, f"is a symlink to {info.linkname!r}")
    return Entry(
        kind=tarfile.DIRTYPE if info.isdir() else tarfile.SYMTYPE if info.issym() else tarfile.REGTYPE,
        mode=info.mode & 0o7777,
        uid=info.uid,
        gid=info.gid,
        mtime=int(info.mtime) if 0 <= info.mtime <= MAX_TIME else 0,
        target=info.linkname if info.issym() else "",
        size=info.size if info.isreg() else 0,
        content=(number, info.offset_data) if info.isreg() else None,
        open=(lambda: cast(IO[bytes], layer.extractfile(info))) if info.isreg() else None,
    )


def _inside(path: str, info: tarfile.TarInfo, source: str) -> str:
    """``path`` relative to the root, without dots."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/"):
        _refuse(info, source, f"has an absolute name, {path!r}")
    if ".." in parts or "\0" in path:
        _refuse(info, source, f"would leave the image by {path!r}")
    return "/".join(parts)


def _refuse(info: tarfile.TarInfo, source: str, why: str) -> NoReturn:
    raise ConfigError(f"{source}: member {info.name!r} {why}")


def _drop(tree: dict[str, Entry], name: str, *, itself: bool = True) -> None:
    """Forget ``name`` and what is below it."""
    entry = tree.pop(name, None) if itself else None
    if entry is None or entry.kind == tarfile.DIRTYPE:
        start = f"{name}/" if name else ""
        for path in [path for path in tree if path.startswith(start)]:
            del tree[path]


def _check_end(layer: tarfile.TarFile, source: str) -> None:
    """Raises ReadError: reading stopped at what is neither a header nor the end, which tarfile takes for the end."""
    assert layer.fileobj is not None
    layer.fileobj.seek(layer.offset)
    if any(layer.fileobj.read(tarfile.BLOCKSIZE)):
        raise tarfile.ReadError(f"no header at byte {layer.offset}")


def _with_parents(entries: dict[str, Entry], source: str) -> dict[str, Entry]:
    """With the directories that nobody mentioned. Raises ConfigError: something lies below what is no directory."""
    whole = dict(entries)
    for name in entries:
        parent = name.rpartition("/")[0]
        while parent and parent not in whole:
            whole[parent] = Entry(tarfile.DIRTYPE)
            parent = parent.rpartition("/")[0]
        if parent and whole[parent].kind != tarfile.DIRTYPE:
            kind = "symlink" if whole[parent].kind == tarfile.SYMTYPE else "file"
            raise ConfigError(f"{source}: member {name!r} lies below the {kind} {parent!r}")
    return whole

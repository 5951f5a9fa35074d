"""What images are made of in tests: small trees, tars of any members, ``docker save`` archives."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from glmgym_sandboxes.images import Image

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", *, type: bytes = tarfile.REGTYPE, to: str = "", **facts: int) -> Member:
    """One member of a tar; ``facts`` are mode, uid, gid, mtime."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = type, len(content), to
    info.mode = 0o755 if type == tarfile.DIRTYPE else 0o644
    for key, value in facts.items():
        setattr(info, key, value)
    return info, content


def directory(name: str, **facts: int) -> Member:
    return member(name, type=tarfile.DIRTYPE, **facts)


def symlink(name: str, to: str) -> Member:
    return member(name, type=tarfile.SYMTYPE, to=to)


def hard_link(name: str, to: str) -> Member:
    return member(name, type=tarfile.LNKTYPE, to=to)


def tar_bytes(members: Iterable[Member], *, mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def docker_save(layers: Iterable[bytes], *, tags: Iterable[str] = ("some:tag",)) -> bytes:
    """One image per tag, each of the same layers."""
    named = [(f"layer{number}/layer.tar", content) for number, content in enumerate(layers)]
    manifest = [{"Config": "c.json", "RepoTags": [tag], "Layers": [name for name, _ in named]} for tag in tags]
    files = [*named, ("c.json", b"{}"), ("manifest.json", json.dumps(manifest).encode())]
    return tar_bytes([member(name, content) for name, content in files])


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Files by path; a value that begins with ``-> `` is a symlink's target."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
    return root


def seen(image: Image) -> dict[str, str]:
    """What the image holds, as ``write_tree`` takes it; directories end with a slash, hard links begin with ``= ``."""
    shown = {}
    with tarfile.open(image.tar) as tar:
        for info in tar:
            if info.isdir():
                shown[f"{info.name}/"] = ""
            elif info.issym():
                shown[info.name] = f"-> {info.linkname}"
            elif info.islnk():
                shown[info.name] = f"= {info.linkname}"
            else:
                file = tar.extractfile(info)
                assert file is not None
                shown[info.name] = file.read().decode()
    return shown

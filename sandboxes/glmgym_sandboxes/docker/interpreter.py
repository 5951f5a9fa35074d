"""A Python for images that have none: as much of this process's own as the agent and the relay need.

Its libraries and its loader come along. That loader starts it, so it runs in an image with another C library or with
none. The commands of the box are the image's and see nothing of it: no environment variable is set. Owns a directory
below the cache, named by what it is made of.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from glmgym.errors import SandboxFailure
from glmgym_sandboxes import agent, relay

PLACE = "/run/glmgym-python"  # of the directory in a box
COLLECT_TIMEOUT_S = 30.0
# What loading the two loads: Python modules, and whatever is mapped. In an image without locales, ASCII comes first.
_COLLECT = """
import sys, json, os, encodings.ascii, encodings.latin_1, encodings.idna, importlib.util, _socket
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("loaded", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
modules = {getattr(module, "__file__", None) for name, module in sys.modules.items() if name != "__main__"}
mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/")}
json.dump({
    "modules": sorted(modules - {None}), "mapped": sorted(mapped), "stdlib": os.path.dirname(os.__file__),
    "prefix": sys.base_prefix, "program": os.path.realpath("/proc/self/exe"),
}, sys.stdout)
"""


def command() -> list[str]:
    """What starts it in a box, where the directory of ``prepare`` is mounted at ``PLACE``."""
    return [f"{PLACE}/loader", "--library-path", f"{PLACE}/libraries", f"{PLACE}/bin/python3"]


def prepare(cache: Path) -> Path:
    """The directory to mount, made if the cache lacks it. Blocking.

    Raises:
        SandboxFailure: this process's Python cannot be taken apart like this.
    """
    found = json.loads(
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COLLECT, agent.__file__, relay.__file__],
            check=True,
            capture_output=True,
            timeout=COLLECT_TIMEOUT_S,
        ).stdout
    )
    program, modules = found["program"], set(found["modules"])
    libraries = [path for path in found["mapped"] if ".so" in Path(path).name and path not in modules | {program}]
    loader = next((path for path in libraries if Path(path).name.startswith("ld-")), None)
    stray = [path for path in modules if not path.startswith((found["stdlib"], os.path.dirname(agent.__file__)))]
    if loader is None or stray:
        what = f"its modules lie at {stray[0]}" if stray else "it has no loader of its own"
        raise SandboxFailure(f"{sys.executable} cannot be brought along into an image without python3: {what}")
    files = {"bin/python3": program, "loader": loader}
    files |= {os.path.relpath(path, found["prefix"]): path for path in modules if path.startswith(found["stdlib"])}
    files |= {f"libraries/{name}": path for path in libraries for name in _names(path)}
    directory = cache / "python" / _key(files)
    if not directory.is_dir():
        _copy(files, directory)
    return directory.resolve()


def _names(library: str) -> set[str]:
    """The names under which the loader may ask for it: its own, and those of the links beside it that lead to it."""
    path = Path(library)
    stem = path.name.partition(".so")[0]
    return {path.name} | {link.name for link in path.parent.glob(f"{stem}.so*") if link.resolve() == path.resolve()}


def _key(files: dict[str, str]) -> str:
    facts = [(name, path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for name, path in sorted(files.items())]
    return hashlib.sha256(repr(facts).encode() + Path(__file__).read_bytes()).hexdigest()[:16]


def _copy(files: dict[str, str], directory: Path) -> None:
    """Whole or not at all: made beside it and renamed. Two processes that make the same one do not get in the way."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=directory.parent, prefix="partial-"))
    try:
        copies: dict[str, Path] = {}
        for name, path in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            if path in copies:
                (partial / name).hardlink_to(copies[path])
            else:
                copies[path] = Path(shutil.copyfile(path, partial / name))
                copies[path].chmod(0o755 if path in (files["loader"], files["bin/python3"]) else 0o644)
        # Never checked against the sources: the directory is read-only in the box, and its name is its content's.
        compileall.compile_dir(partial, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        partial.chmod(0o755)
        try:
            partial.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)

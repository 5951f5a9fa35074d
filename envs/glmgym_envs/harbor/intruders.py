"""Files that would run inside a verifier without being called: found before the policy comes, and taken out afterwards.

A shared verifier's ``test.sh`` runs on the policy's files. A ``sitecustomize.py`` among them, a ``.pth`` with code, a
plug-in of pytest's or a ``python3`` first on the PATH would run in it by itself. What was there at reset, with the
task's own set-up, stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from glmgym.errors import EnvFailure, ScorerFailure
from glmgym.sandbox import BoxFileError, Sandbox
from glmgym_envs.harbor.schema import Log
from glmgym_envs.harbor.steering import Steering, keep_steering

TIMEOUT_S = 30.0
MAX_STARTER_BYTES = 64 << 20
_LOOK = r"""
import glob, hashlib, json, os, site, sys
PROGRAMS = ("bash", "env", "pip", "pip3", "py.test", "pytest", "python", "python3", "sh", "timeout", "uv", "uvx")
ROOT = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
found = {}
def add(path):
    if os.path.isfile(path) or os.path.islink(path):
        with open(path, "rb") as file:
            found[path] = hashlib.sha256(file.read()).hexdigest()
homes = {os.path.expanduser("~"), "/root", sys.argv[1]}
places = set(sys.path) | set(site.getsitepackages()) | set(glob.glob("/usr/local/lib/python3*/*-packages"))
places |= {place for home in homes for place in glob.glob(home + "/.local/lib/python3*/site-packages")}
prefixes = glob.glob("/opt/*/") + glob.glob("/opt/*/envs/*/") + glob.glob("/opt/venv*/") + glob.glob("/venv/")
places |= {place for prefix in prefixes for place in glob.glob(prefix + "lib/python3*/site-packages")}
for place in places:
    for pattern in ("sitecustomize*", "usercustomize*"):
        for path in glob.glob(os.path.join(glob.escape(place), pattern)):
            for each in glob.glob(os.path.join(glob.escape(path), "__init__.py")) if os.path.isdir(path) else [path]:
                add(each)
    for path in glob.glob(os.path.join(glob.escape(place), "*.pth")):
        with open(path, "rb") as file:
            if any(line.startswith((b"import ", b"import\t")) for line in file):
                add(path)
    for path in glob.glob(os.path.join(glob.escape(place), "*-info", "entry_points.txt")):
        with open(path, "rb") as file:
            if b"pytest11" in file.read():
                add(path)
for name in ROOT:
    add("/" + name)
standard = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
for prefix in prefixes:
    for path in glob.glob(prefix + "etc/conda/activate.d/*") + [prefix + "bin/activate"]:
        add(path)
for folder in dict.fromkeys(os.environ.get("PATH", "").split(":") + standard + [each + "bin" for each in prefixes]):
    for name in PROGRAMS:
        add(os.path.join(folder, name))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Before:
    """A box before the policy came. ``python`` is "" in an image without one: then nothing is compared."""

    python: str = ""
    loaded: Mapping[str, str] = field(default_factory=dict)  # sha256 by path of what would run by itself
    starters: Mapping[str, str] = field(default_factory=dict)  # of what a copy of the box is started with
    steering: Steering | None = None  # of the repository of an imported task


async def look(box: Sandbox, workdir: str, log: Log | None = None) -> Before:
    """See ``Before``; to be called while the box can be trusted.

    Raises:
        EnvFailure: the box's Python does not say what it loads; or there is none, where a log is to be graded.
    """
    found = await box.run(["/bin/sh", "-c", 'p="$(command -v python3)" && readlink -f -- "$p" && echo "$p:$PATH"'])
    if found.exit_code != 0 and log is not None:
        raise EnvFailure(f"box {box.id} has no python3, which a task graded by its log needs in its image")
    if found.exit_code != 0:
        return Before()
    real, *names = found.text.replace("\n", ":").strip(":").split(":")
    python, places = names[0], [*names[1:], "/usr/local/sbin", "/usr/local/bin"]
    earlier = [f"{place}/python3" for place in dict.fromkeys(places) if f"{place}/python3" != python]
    watched = {path: await _content(box, path) for path in (real, "/etc/ld.so.preload", *earlier)}
    steering = None
    if log is not None and log.repository:
        steering = await keep_steering(box, python, log.repository, log.restored, log.left)
    return Before(python, await _loaded(box, python, workdir), watched, steering)


async def python_of(box: Sandbox) -> str:
    """The interpreter of a fresh box, by its absolute path.

    Raises:
        ScorerFailure: there is none.
    """
    found = await box.run(["/bin/sh", "-c", 'readlink -f -- "$(command -v python3)"'])
    if found.exit_code != 0 or not found.text.startswith("/"):
        raise ScorerFailure(f"grading box {box.id} has no python3, which a task graded by its log needs")
    return found.text.strip()


async def changed_starters(box: Sandbox, before: Before) -> tuple[str, ...]:
    """What the policy did to the interpreter that a copy of its box starts with. Runs nothing in the box."""
    differing = [path for path, content in before.starters.items() if await _content(box, path) != content]
    return tuple(f"{path} is not what it was before the policy came" for path in differing)


async def take_out(box: Sandbox, workdir: str, before: Before) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove from a grading box what would run by itself and was not there at reset.

    Returns:
        A sentence for each file removed, and one for each whose content is another than at reset.

    Raises:
        ScorerFailure: one cannot be removed.
    """
    after = await _loaded(box, before.python, workdir)
    new = sorted(path for path in after if path not in before.loaded)
    if new:
        result = await box.run(["/bin/rm", "-f", "--", *new], cwd="/")
        if result.exit_code != 0:
            raise ScorerFailure(f"{', '.join(new)} cannot be removed from a grading box: {result.text.strip()}")
    changed = sorted(path for path in after if path in before.loaded and after[path] != before.loaded[path])
    return (
        tuple(f"{path} would run in the verifier by itself and was taken out" for path in new),
        tuple(f"{path}, which runs in the verifier, was changed" for path in changed),
    )


async def _loaded(box: Sandbox, python: str, workdir: str) -> dict[str, str]:
    result = await box.run([python, "-I", "-S", "-B", "-c", _LOOK, workdir], timeout_s=TIMEOUT_S, cwd="/")
    try:
        found: dict[str, str] = json.loads(result.stdout)
    except ValueError:
        raise EnvFailure(f"{python} cannot look around in box {box.id}: {result.text.strip()[-300:]}") from None
    return found


async def _content(box: Sandbox, path: str) -> str:
    """The sha256 of a file, or why it cannot be read: that it is missing, or a symlink."""
    try:
        return hashlib.sha256(await box.read(path, max_bytes=MAX_STARTER_BYTES)).hexdigest()
    except BoxFileError as error:
        return str(error)

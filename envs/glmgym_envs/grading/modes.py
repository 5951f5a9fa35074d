"""Where grading happens: in a fresh box, in a copy of the policy's, or beside its running services.

Owned here: what passes from the policy's box into the one that grades, and that no process of the policy does, unless
the task says that it needs them. What was refused or found on the way is in ``GradingBox.notes``; what makes a grading
box unfit to be believed is in its ``flags``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from glmgym import scratch
from glmgym.env import ScoreView
from glmgym.errors import ConfigError, ScorerFailure
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult, Sandbox, Shell
from glmgym_envs.grading.signs import signs
from glmgym_envs.grading.trusted import PYTHON, random_name

VERIFIER = "/logs/verifier"
MAX_ARTIFACT_BYTES = 256 << 20  # of one artifact
MAX_ARTIFACT_FILES = 50_000
STAGE_TIMEOUT_S = 120.0

# Exit codes: 3 the path is or goes through a symlink, 4 nothing is there, 5 it is neither a file nor a directory.
# A file is linked, not copied, where it can be; a directory is copied without what is excluded and what is no file.
_STAGE = r"""
source=$1 stage=$2; shift 2
[ -L "$source" ] && exit 3
[ -e "$source" ] || exit 4
[ "$(readlink -f -- "$source")" = "$source" ] || exit 3
mkdir -p "$stage" || exit 1
if [ -f "$source" ]; then
    ln -- "$source" "$stage/file" 2>/dev/null || cp -P -- "$source" "$stage/file" || exit 1
elif [ -d "$source" ]; then
    tar -C "$source" "$@" -cf - . | tar -C "$stage" --no-same-owner -xf - || exit 1
    cd "$stage" && find . ! -type f ! -type d -print -exec rm -f {} +
else
    exit 5
fi
echo
[ -f "$source" ] && echo file || echo directory
"""
# The image's programs, libraries and modules with size and times of change, or the digests of those that are asked for.
# A lower layer's file keeps its ctime until it is copied up, and no process can set that.
_SYSTEM = r"""
import glob, hashlib, json, os, sys
target, asked = sys.argv[1], json.loads(sys.stdin.read())
places = ["/usr/bin", "/usr/lib/python3*", "/usr/local/lib/python3*", "/usr/lib/*-linux-gnu", "/etc/ld.so*"]
found = {}
def add(path):
    try:
        about = os.lstat(path)
        if asked:
            with open(path, "rb") as file:
                found[path] = hashlib.sha256(file.read()).hexdigest()
        elif not path.endswith(".pyc"):
            found[path] = "%d %d %d" % (about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    except OSError:
        found[path] = "gone"
for path in asked:
    add(path)
prefixes = ("/opt/*", "/opt/*/envs/*")  # of interpreters that an image brought: their library, and pytest's own parts
stack = ("_pytest", "pytest", "pluggy", "iniconfig", "unittest")
places += [prefix + "/lib/python3*/site-packages/" + name for prefix in prefixes for name in stack]
places += [prefix + "/bin/python3*" for prefix in prefixes]
libraries = [place for prefix in prefixes for place in glob.glob(prefix + "/lib/python3*")]
for place in places + libraries if not asked else ():
    for top in glob.glob(place):
        if not os.path.isdir(top):
            add(top)
        for folder, below, names in os.walk(top):
            if top in libraries and "site-packages" in below:
                below.remove("site-packages")
            for name in names:
                add(os.path.join(folder, name))
with open(target, "w") as file:
    file.write(json.dumps(found))
"""
# The files that an interpreter and a shell are made of, by the paths that are no symlinks.
_STARTERS = r"""
import os, subprocess, sys
with open("/proc/self/maps") as file:
    maps = file.read()
maps += subprocess.run(["/bin/sh", "-c", "while read -r line; do echo \"$line\"; done < /proc/$$/maps"],
                       stdout=subprocess.PIPE).stdout.decode()
found = {line.split(None, 5)[5] for line in maps.splitlines() if len(line.split(None, 5)) == 6}
found |= {os.path.realpath(path) for path in sys.argv[1:]}
print("\n".join(sorted(path for path in found if path.startswith("/") and os.path.isfile(path))))
"""
# Directories without permissions keep what is in them.
_EMPTY = r"""
[ -e "$1" ] || [ -L "$1" ] || { mkdir -p "$1" 2>/dev/null; exit 0; }
rm -rf "$1" 2>/dev/null || { chmod -R u+rwx "$1"; rm -rf "$1"; } && mkdir -m 0700 "$1"
"""
_LOADED = ("/usr/lib/python3", "/etc/ld.so.preload")  # where a new file changes what the grader itself runs


class BroughtDown(ScorerFailure):
    """A grading box died, or what runs the tests was killed in it, while the policy's code ran there."""


class Mode(StrEnum):
    SEPARATE = "separate"
    SHARED = "shared"
    IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class GradingBox:
    """A box to grade in. Given by a context manager, which closes it; in place, it is the policy's own."""

    box: Sandbox
    mode: Mode
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    again: Callable[[], Awaitable[Sandbox]] | None = None  # another box with the same in it; none in place


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or directory of the policy's box that grading is about.

    Raises:
        ConfigError: a path is not absolute, or goes up.
    """

    source: str
    destination: str = ""  # in the grading box; "" for the same path
    exclude: tuple[str, ...] = ()  # patterns of tar, such as "./.git"

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if not path.startswith("/") or ".." in path.split("/") or "\0" in path or path.strip("/") == "":
                raise ConfigError(f"artifact {path!r}: must be an absolute path without '..'")

    @property
    def target(self) -> str:
        return self.destination or self.source


@asynccontextmanager
async def separate(
    view: ScoreView,
    artifacts: Sequence[Artifact | str],
    *,
    spec: BoxSpec | None = None,
    home: str = "/work",
    shell: Shell | None = None,
    python: str = PYTHON,
    max_bytes: int = MAX_ARTIFACT_BYTES,
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None,
) -> AsyncIterator[GradingBox]:
    """A fresh box with nothing of the policy's but the named artifacts.

    One that is missing, too large, a symlink or below one is not there and noted; so are symlinks, devices, pipes and
    sockets in a directory. Contents pass through a temporary directory of this machine, in pieces.

    Args:
        spec: of the grading box; the task's own if not given.
        home, shell: the policy's, for the look at what it left behind.
        max_bytes: of each artifact.
        prepare: puts into a grading box what belongs to the task and is not the policy's, after the artifacts.

    Raises:
        ConfigError: the environment has no box.
        ScorerFailure: an artifact that was collected cannot be put into the grading box.
    """
    agents = _box_of(view)
    notes = list(await signs(agents, home=home, verifier=(VERIFIER,), shell=shell, python=python))
    async with contextlib.AsyncExitStack() as opened:
        kept = await opened.enter_async_context(scratch.async_temporary())
        collected: list[tuple[Artifact, Path]] = []
        for number, each in enumerate(artifacts):
            artifact = Artifact(each) if isinstance(each, str) else each
            place = kept / str(number)
            told = await collect(agents, artifact, place, max_bytes=max_bytes)
            notes += told
            if await asyncio.to_thread(place.is_dir):
                collected.append((artifact, place))

        async def filled() -> Sandbox:
            box = await view.open_box(spec)
            opened.push_async_callback(box.close)
            for artifact, place in collected:
                try:
                    await _put(box, artifact, place)
                except BoxFileError as error:
                    raise ScorerFailure(
                        f"artifact {artifact.source} cannot be put into the grading box: {error}"
                    ) from error
            if prepare is not None:
                await prepare(box)
            return box

        box = await filled()
        if spec is None and await _may_change_system(agents):
            with contextlib.suppress(ScorerFailure):  # the policy broke its own system; this box is another
                notes += await _changed_system(agents, box, python)
        yield GradingBox(box, Mode.SEPARATE, tuple(notes), again=filled)


@asynccontextmanager
async def shared(
    view: ScoreView, *, home: str = "/work", shell: Shell | None = None, python: str = PYTHON
) -> AsyncIterator[GradingBox]:
    """A copy of the policy's box: its files, none of its processes. ``/logs/verifier`` is empty there.

    Where the policy could write to the system, it is compared with a fresh box of the task: a program, library or
    module of the image that was changed is a flag, since the grader's own commands stand on it. What the copy itself
    starts with, interpreter, shell and the libraries of both, is compared before there is one; if that was changed,
    there is none, and the box given is the fresh one.

    Raises:
        ConfigError: the environment has no box.
        ScorerFailure: the copy cannot be made ready.
    """
    agents = _box_of(view)
    notes = await signs(agents, home=home, verifier=(VERIFIER,), shell=shell, python=python)
    async with contextlib.AsyncExitStack() as opened:

        async def copied() -> Sandbox:
            (box,) = await agents.fork(1)
            opened.push_async_callback(box.close)
            await empty(box, VERIFIER)
            return box

        fresh: Sandbox | None = None
        flags: tuple[str, ...] = ()
        if await _may_change_system(agents):
            fresh = await view.open_box(None)
            opened.push_async_callback(fresh.close)
            if flags := await _changed_starters(agents, fresh, python):
                # The copy would run what was changed before it could be compared.
                yield GradingBox(fresh, Mode.SHARED, notes, flags)
                return
        box = await copied()
        if fresh is not None:
            flags = await _changed_system(box, fresh, python)
        yield GradingBox(box, Mode.SHARED, notes, flags, again=copied)


@asynccontextmanager
async def in_place(
    view: ScoreView, *, home: str = "/work", shell: Shell | None = None, python: str = PYTHON
) -> AsyncIterator[GradingBox]:
    """The policy's own box, with all that runs in it: only for a task that says that it needs those services.

    Nothing that lies in a file there can be believed, since a process of the policy's may write it again: a reward has
    to come from what the verifier's own command returned, as ``run_pytest`` does it. The notes say which mode it was.
    That ``/logs/verifier`` cannot be emptied is the policy's doing, and a flag.

    Raises:
        ConfigError: the environment has no box.
    """
    agents = _box_of(view)
    notes = await signs(agents, home=home, verifier=(VERIFIER,), shell=shell, python=python)
    flags: tuple[str, ...] = ()
    try:
        await empty(agents, VERIFIER)
    except ScorerFailure as kept:
        flags = (str(kept),)
    yield GradingBox(agents, Mode.IN_PLACE, (*notes, "graded in place, beside the policy's own processes"), flags)


async def collect(
    box: Sandbox, artifact: Artifact, target: Path, *, max_bytes: int = MAX_ARTIFACT_BYTES
) -> tuple[str, ...]:
    """Copy one artifact of a box to the directory ``target``, which is not made if there is nothing to copy.

    A directory's content is there as it is, a file under its own name.

    Returns:
        A sentence for each thing that was refused.
    """
    source, stage = posixpath.normpath(artifact.source), f"/tmp/{random_name()}"
    try:
        excluded = [f"--exclude={pattern}" for pattern in artifact.exclude]
        argv = ["/bin/sh", "-c", _STAGE, "sh", source, stage, *excluded]
        result = await box.run(argv, timeout_s=STAGE_TIMEOUT_S, cwd="/")
        *refused, _, kind = result.stdout.decode("utf-8", "replace").splitlines() or ["", ""]
        if result.exit_code != 0 or result.timed_out or kind not in ("file", "directory"):
            return (f"artifact {source}: {_problem(result)}",)
        await box.get_tree(stage, target, max_bytes=max_bytes, max_files=MAX_ARTIFACT_FILES)
        if kind == "file":
            await asyncio.to_thread(Path(target, "file").rename, Path(target, posixpath.basename(artifact.target)))
        return tuple(f"artifact {source}: {name} is no regular file and was left out" for name in refused[:20])
    except (BoxFileError, CommandError) as error:
        return (f"artifact {source} was refused: {str(error).replace(stage, source)}",)
    finally:
        with contextlib.suppress(CommandError):
            await box.run(["/bin/rm", "-rf", stage], cwd="/")


async def empty(box: Sandbox, directory: str) -> None:
    """Make a directory that only the verifier writes to: whatever stood there is gone. Nothing if it cannot exist.

    Raises:
        ScorerFailure: something stands there and cannot be removed.
    """
    result = await box.run(["/bin/sh", "-c", _EMPTY, "sh", directory], cwd="/")
    if result.exit_code != 0:
        raise ScorerFailure(f"{directory} of the grading box cannot be emptied: {result.text.strip()}")


async def _put(box: Sandbox, artifact: Artifact, place: Path) -> None:
    is_file = await asyncio.to_thread(_holds_only, place, posixpath.basename(artifact.target))
    await box.put_tree(place, posixpath.dirname(artifact.target) if is_file else artifact.target)


def _holds_only(place: Path, name: str) -> bool:
    return [each.name for each in place.iterdir() if each.is_file()] == [name] and len(list(place.iterdir())) == 1


async def _may_change_system(box: Sandbox) -> bool:
    """True where the policy could write to the system. It may lie about it only by having done so."""
    return (await box.run(["/bin/sh", "-c", "[ -w /usr/bin ]"], cwd="/")).exit_code == 0


async def _changed_starters(agents: Sandbox, fresh: Sandbox, python: str) -> tuple[str, ...]:
    """Files a copy of the policy's box would start with that are not those of ``fresh``. Runs nothing in ``agents``."""
    mapped = await fresh.run([python, "-I", "-S", "-B", "-c", _STARTERS, python, "/bin/sh"], cwd="/")
    paths = [*mapped.text.splitlines(), "/etc/ld.so.preload"]
    pairs = [(path, await _content(agents, path), await _content(fresh, path)) for path in paths]
    return tuple(f"{path} of the image was changed" for path, now, was in pairs if now != was)


async def _content(box: Sandbox, path: str) -> str:
    """A digest, or why there is none."""
    try:
        return hashlib.sha256(await box.read(path, max_bytes=64 << 20)).hexdigest()
    except BoxFileError as error:
        return str(error)


async def _changed_system(box: Sandbox, fresh: Sandbox, python: str) -> tuple[str, ...]:
    """Files of the image that are not the same in ``fresh``, and new ones where the grader would load them."""
    before, after = await _system(fresh, (), python), await _system(box, (), python)
    suspects = [path for path in sorted(before) if after.get(path) != before[path]]
    if suspects:
        was, now = await _system(fresh, suspects, python), await _system(box, suspects, python)
        suspects = [path for path in suspects if was[path] != now.get(path)]
    added = [path for path in sorted(after) if path not in before and path.startswith(_LOADED)]
    sentences = [f"{path} of the image was changed" for path in suspects]
    return tuple([*sentences, *(f"{path} was added to the system" for path in added)][:20])


async def _system(box: Sandbox, paths: Sequence[str], python: str) -> dict[str, str]:
    place = f"/tmp/{random_name()}"
    argv = [python, "-I", "-S", "-B", "-c", _SYSTEM, place]
    result = await box.run(argv, cwd="/", stdin=json.dumps(list(paths)).encode(), timeout_s=STAGE_TIMEOUT_S)
    try:
        found: dict[str, str] = json.loads(await box.read(place, max_bytes=64 << 20))
    except (BoxFileError, ValueError):
        raise ScorerFailure(f"the system of a box cannot be looked at: {result.text[-300:]!r}") from None
    return found


def _problem(result: CommandResult) -> str:
    known = {
        3: "refused, since it is a symlink or below one",
        4: "is not there",
        5: "refused, since it is neither a file nor a directory",
    }
    return known.get(result.exit_code, f"could not be collected: {result.text.strip()[-200:]}")


def _box_of(view: ScoreView) -> Sandbox:
    if view.box is None:
        raise ConfigError(f"task {view.task.id}: grading needs a box; register the environment with box=BoxSpec()")
    return view.box

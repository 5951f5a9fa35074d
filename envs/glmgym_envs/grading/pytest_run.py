"""Hidden tests run in a grading box so that the policy's code cannot speak for them, and SWE-bench's grading rules.

Two processes in the box. The *runner* (``runner.py``) never sees the policy's code and signs its results with a key it
was given by standard input. The *tests' process* (``plugin.py``) runs pytest under an isolated interpreter and reports
each test by its exact id to the runner. Nothing printed is ever parsed. What the tests' process says is believed only
if all of it fits: every collected test reported once, an end that agrees with the exit code, nothing that pytest stands
on replaced, and every canary failed (``canary.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import secrets
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmgym.errors import SandboxDead, ScorerFailure
from glmgym.sandbox import BoxFileError, Sandbox
from glmgym.trajectory import Reward
from glmgym_envs.grading.canary import Canary, plant
from glmgym_envs.grading.modes import BroughtDown, GradingBox, Mode
from glmgym_envs.grading.trusted import PYTHON, TrustedTests, random_name, restore

DIST_PACKAGES = "/usr/lib/python3/dist-packages"  # where the base image has pytest
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GRACE_S = 15.0  # beyond the tests' own time, for the runner to come to its end
CONTROL_TIMEOUT_S = 60.0
MAX_RESULTS_BYTES = 64 << 20
MAX_LOG_CHARS = 200_000
_STOPPED = "the runner was stopped, or its results were destroyed, while the tests ran"

PASSED, FAILED, SKIPPED, ERROR, XFAIL, XPASS = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL", "XPASS"


@dataclass(frozen=True, slots=True)
class PytestOutcome:
    """What the hidden tests said.

    A *flag* says that the report cannot be believed: such a run is worth 0. A *note* is something the policy left
    behind that a person may want to look at; it decides nothing.
    """

    statuses: Mapping[str, str]  # by exact test id; canaries are not among them
    flags: tuple[str, ...] = ()
    log: str = ""
    notes: tuple[str, ...] = ()
    started: bool = True  # the tests were collected; else nothing of the policy's need have run


_NOTHING = PytestOutcome({}, started=False)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python of a grading box. All paths are absolute, and none may be the policy's to write."""

    python: str = PYTHON
    site_packages: tuple[str, ...] = (DIST_PACKAGES,)  # pytest and what the image has installed; .pth files are ignored
    flags: tuple[str, ...] = ("-I", "-S", "-B")  # isolated, no site, no compiled files written
    plugins: tuple[str, ...] = ()  # modules of pytest plugins to load by name; none is loaded by itself


async def run_pytest(
    place: Sandbox | GradingBox,
    trusted: TrustedTests,
    *,
    timeout_s: float,
    interpreter: Interpreter | None = None,
    import_paths: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    focus: Iterable[str] = (),
    seed: int | None = None,
) -> PytestOutcome:
    """Clear the box (``trusted.restore``), put the trusted tests in with canaries among them, and run them.

    Args:
        place: a grading box with the policy's files at ``trusted.root``; what ``modes`` noted and flagged is kept.
        timeout_s: of the tests; a run that takes longer, or does not even start, is flagged if a control run works in
            the same box.
        import_paths: where the tests find the code under test and wheels put beside it, after the standard library and
            before what is installed; the root and its ``src`` if not given.
        env: added to the few variables that the tests see.
        arguments: further ones for pytest, such as ``-W`` filters. What the repository configures is not used.
        focus: ids of the tests that matter most, as the F2P list has them: canaries are made from these first.
        seed: of the canaries; not given, nobody can foresee them.

    A box that is brought down while the tests run is opened once more, if ``place`` says how: where that one can run
    tests and is then brought down as well, the policy did it, and the outcome is flagged.

    Raises:
        ScorerFailure: the box cannot run tests, so that nothing can be said about the policy.
        SandboxDead: the box is gone: before the tests began, or there is no other to be had.
    """
    before = place if isinstance(place, GradingBox) else None
    interpreter = interpreter or Interpreter()

    async def once(box: Sandbox) -> PytestOutcome:
        return await _run_once(
            box, before, trusted, timeout_s, interpreter, import_paths, env or {}, arguments, tuple(focus), seed
        )

    try:
        return await once(place.box if isinstance(place, GradingBox) else place)
    except BroughtDown as first:
        if before is None or before.again is None:
            raise (first.__cause__ or first) from None
    box = await before.again()
    await _control(box, interpreter)  # a box that cannot run tests before the policy's code came says nothing
    try:
        return await once(box)
    except BroughtDown as again:
        flag = f"two grading boxes were brought down while the tests ran: {again}"
        return replace(_NOTHING, flags=(*before.flags, flag), notes=before.notes)


async def _run_once(
    box: Sandbox,
    before: GradingBox | None,
    trusted: TrustedTests,
    timeout_s: float,
    interpreter: Interpreter,
    import_paths: Sequence[str] | None,
    env: Mapping[str, str],
    arguments: Sequence[str],
    focus: Sequence[str],
    seed: int | None,
) -> PytestOutcome:
    """One run in one box.

    Raises:
        BroughtDown: the box died, or can run no tests any more, since the policy's code ran in it.
    """
    paths = (trusted.root, f"{trusted.root}/src") if import_paths is None else tuple(import_paths)
    notes = await restore(box, trusted, python=interpreter.python)
    targets = trusted.targets or trusted.test_files
    rng = random.Random(secrets.randbits(64) if seed is None else seed)
    planted = plant(_collected(trusted, targets), rng, focus)
    for path, content in planted.files.items():
        if content != trusted.files.get(path):
            await box.write(f"{trusted.root}/{path}", content)
    chosen = [*targets, *_not_covered(targets, planted.canaries, set(planted.files) - set(trusted.files))]
    options = [*arguments, *([] if trusted.has_conftest else ["--noconftest"])]
    if before is not None and before.mode is not Mode.SEPARATE:
        # Compiled files of a system that the policy may have written to are not looked at.
        interpreter = replace(interpreter, flags=(*interpreter.flags, "-X", f"pycache_prefix=/tmp/{random_name()}"))
    job = _job(interpreter, trusted.root, options, chosen, paths, env, timeout_s)
    try:
        told = await run_job(box, job)
    except SandboxDead as dead:
        raise BroughtDown(str(dead)) from dead
    outcome = _read(told, job["tests"]["nonce"], planted.canaries) if told is not None else _NOTHING
    flags = before.flags if before is not None else ()
    if told is None or told["timed_out"] or not outcome.started:
        try:
            await _control(box, interpreter)
        except (SandboxDead, ScorerFailure) as broken:
            raise BroughtDown(str(broken)) from broken
    if told is None:
        flags += (_STOPPED,)
    elif told["timed_out"]:
        flags += (f"the tests did not finish within {timeout_s:g} s",)
    notes = (*(before.notes if before is not None else ()), *notes)
    return replace(outcome, flags=(*flags, *outcome.flags), notes=(*notes, *outcome.notes))


def grade_f2p_p2p(outcome: PytestOutcome, f2p: Iterable[str], p2p: Iterable[str]) -> tuple[Reward, ...]:
    """SWE-bench's rules: 1 iff every test of both lists is as it must be, else 0.

    A test of ``f2p`` must be PASSED or XFAIL; one of ``p2p`` may be SKIPPED as well; one that is missing is not as it
    must be. A flagged outcome gives 0 with its flags as the reason. The fractions of both lists are components of
    weight 0, for reports.

    Raises:
        ScorerFailure: ``f2p`` is empty, so that nothing was asked.
    """
    wanted, kept = tuple(dict.fromkeys(f2p)), tuple(dict.fromkeys(p2p))
    if not wanted:
        raise ScorerFailure("no test is named that must pass: the task's F2P list is empty")
    bad_f2p = [id for id in wanted if outcome.statuses.get(id) not in (PASSED, XFAIL)]
    bad_p2p = [id for id in kept if outcome.statuses.get(id) not in (PASSED, XFAIL, SKIPPED)]
    problems = [f"{outcome.statuses.get(id, 'MISSING')} {id}" for id in (*bad_f2p, *bad_p2p)]
    reasons = [f"flagged: {flag}" for flag in outcome.flags] + problems[:5]
    reasons += [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
    reasons += [f"noted: {note}" for note in outcome.notes]
    solved = not outcome.flags and not problems
    return (
        Reward("tests", float(solved), reason="; ".join(reasons)),
        Reward("f2p", _share(wanted, bad_f2p, outcome), weight=0.0),
        Reward("p2p", _share(kept, bad_p2p, outcome), weight=0.0),
    )


def _share(all_of: Sequence[str], bad: Sequence[str], outcome: PytestOutcome) -> float:
    if outcome.flags:
        return 0.0
    return 1.0 - len(bad) / len(all_of) if all_of else 1.0


def _collected(trusted: TrustedTests, targets: Sequence[str]) -> dict[str, bytes]:
    """The test files below the targets."""
    places = [target.partition("::")[0].rstrip("/") for target in targets]
    chosen = [path for path in trusted.test_files if any(path == p or path.startswith(f"{p}/") for p in places)]
    return {path: trusted.files[path] for path in chosen or trusted.test_files}


def _not_covered(targets: Sequence[str], canaries: Sequence[Canary], added: set[str]) -> list[str]:
    """Canaries that pytest would not collect by itself: where single tests are asked for, and files of their own."""
    whole = [target.rstrip("/") for target in targets if "::" not in target]
    found = []
    for canary in canaries:
        path = canary.id.partition("::")[0]
        below = any(path.startswith(f"{place}/") for place in whole)
        if not below and (path in added or path not in whole):
            found.append(canary.id)
    return found


def _job(
    interpreter: Interpreter,
    root: str,
    options: Sequence[str],
    targets: Sequence[str],
    import_paths: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    arguments = ["-c", "/dev/null", f"--rootdir={root}", f"--confcutdir={root}"]
    arguments += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    for plugin in interpreter.plugins:
        arguments += ["-p", plugin]
    variables = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}
    # For programs that the tests start; the tests' own process is isolated and ignores it.
    variables |= {"PYTHONPATH": ":".join(import_paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {
        "python": [interpreter.python, *interpreter.flags],
        "argv": [interpreter.python, *interpreter.flags, "-c", _source("plugin.py")],
        "root": root,
        "env": {**variables, **env},
        "timeout_s": timeout_s,
        "results": f"/tmp/{random_name()}",
        "tests": {
            "nonce": random_name(),
            "root": root,
            "site_packages": list(interpreter.site_packages),
            "import_paths": list(import_paths),
            "arguments": [*arguments, *options, *(f"{root}/{target}" for target in targets)],
        },
    }


async def run_job(box: Sandbox, job: dict[str, Any]) -> dict[str, Any] | None:
    """What the runner signed; ``None`` if there is no such thing."""
    key = secrets.token_bytes(32)
    await box.run(
        [*job["python"], "-c", _source("runner.py")],
        stdin=json.dumps({**job, "key": key.hex()}).encode(),
        cwd="/",
        timeout_s=job["timeout_s"] + GRACE_S,
        env={},
    )
    try:
        signed = await box.read(job["results"], max_bytes=MAX_RESULTS_BYTES)
    except BoxFileError:
        return None
    mark, body = signed[:32], signed[32:]
    if not hmac.compare_digest(hmac.new(key, body, hashlib.sha256).digest(), mark):
        return None
    told: dict[str, Any] = json.loads(zlib.decompress(body))
    return told


async def _control(box: Sandbox, interpreter: Interpreter) -> None:
    """Run canaries and one good test where the policy's code is not imported, to see whether the box itself works.

    Raises:
        ScorerFailure: they do not come out as they must.
    """
    root, nothing = f"/tmp/{random_name()}", {"test_control.py": b"def test_control():\n    assert 1 + 1 == 2\n"}
    planted = plant(nothing, random.Random(secrets.randbits(64)))
    for path, content in planted.files.items():
        await box.write(f"{root}/{path}", content)
    job = _job(interpreter, root, ["--noconftest"], ["test_control.py"], (), {}, CONTROL_TIMEOUT_S)
    told = await run_job(box, job)
    outcome = _read(told, job["tests"]["nonce"], planted.canaries) if told is not None else None
    if outcome is None or outcome.flags or outcome.statuses != {"test_control.py::test_control": PASSED}:
        what = "its runner gave no result" if outcome is None else f"{outcome.flags}, {outcome.log[-500:]!r}"
        raise ScorerFailure(f"the grading box cannot run a test that has nothing to do with the policy: {what}")


def _read(told: Mapping[str, Any], nonce: str, canaries: Sequence[Canary]) -> PytestOutcome:
    """The records of a run and everything about them that does not fit."""
    records, foreign = records_of(told["stream"], nonce)
    flags: list[str] = ["something else wrote into the stream of results"] if foreign else []
    of = {kind: [each for each in records if each["kind"] == kind] for kind in ("start", "test", "broken", "end")}
    ids = [str(id) for record in of["start"] for id in record["ids"]]
    statuses: dict[str, str] = {}
    for record in of["test"]:
        if record["id"] in statuses or record["id"] not in ids:
            flags.append(f"a result that is no collected test's, or its second: {record['id']}")
        statuses[record["id"]] = record["status"]
    broken = {str(record["id"]) for record in of["broken"]}
    flags += _bad_end(told, of["start"], of["end"], [id for id in ids if id not in statuses])
    flags += [f"the code under test replaced {each['name']}" for each in records if each["kind"] == "changed"]
    flags += [f"{problem}" for canary in canaries if (problem := _bad_canary(canary, statuses, ids, broken))]
    planted = {_place(canary.id) for canary in canaries}
    notes = [f"{id or 'the tests'} could not be collected" for id in sorted(broken)]
    notes += [str(each["text"]) for each in records if each["kind"] == "note"]
    if any(line.strip().endswith("passed") or " passed in " in line for line in told["output"].splitlines()):
        notes.append("something printed what looks like test results")
    own = {id: status for id, status in statuses.items() if _place(id) not in planted}
    log = _log(records, planted, told["output"])
    return PytestOutcome(own, tuple(dict.fromkeys(flags)), log, tuple(notes), started=bool(of["start"]))


def records_of(stream: str, nonce: str) -> tuple[list[dict[str, Any]], bool]:
    """The records that carry the nonce, and whether there is anything else."""
    records, foreign = [], False
    for line in stream.split("\n"):
        mark, _, text = line.partition(" ")
        if not line:
            continue
        try:
            record = json.loads(text) if hmac.compare_digest(mark.encode(), nonce.encode()) else None
        except ValueError:  # cut by a killed process
            record = None
        if isinstance(record, dict) and _REQUIRED.get(record.get("kind", ""), {"?"}) <= record.keys():
            records.append(record)
        else:
            foreign = True
    return records, foreign


_REQUIRED = {
    "start": {"ids"},
    "test": {"id", "status", "text"},
    "broken": {"id", "text"},
    "changed": {"name"},
    "note": {"text"},
    "canary": {"text"},
    "end": {"exit"},
}


def _bad_end(told: Mapping[str, Any], start: Sequence[Any], end: Sequence[Any], missing: Sequence[str]) -> list[str]:
    if len(start) != 1 or len(end) != 1 or missing:
        without = f"; {len(missing)} tests have no result" if missing else ""
        return [f"the run did not come to its own end (exit code {told['exit']}){without}"]
    if told["exit"] != end[0]["exit"]:
        return [f"the tests' process left with {told['exit']} where pytest said {end[0]['exit']}"]
    return []


def _bad_canary(canary: Canary, statuses: Mapping[str, str], ids: Sequence[str], broken: set[str]) -> str:
    """Why a canary says that failures do not reach the report; "" if it failed as it must.

    A class that others inherit from hands its canary down to them, under their names.
    """
    if _path(canary.id) in broken:
        return ""  # its file could not even be imported: none of its tests has a result
    own = [id for id in ids if _place(id) == _place(canary.id)]
    if canary.original:
        found: dict[str, set[str | None]] = {}  # of what it was made from, by class
        for id in ids:
            if _place(id) == _place(canary.original):
                found.setdefault(_owner(id), set()).add(statuses.get(id))
        running = {owner for owner, seen in found.items() if not seen & {SKIPPED, XFAIL, XPASS}}
        own = [id for id in own if _owner(id) in running]
        if not own and _owner(canary.id) not in running:
            return ""  # what it was made from does not run here
    if not own:
        return "a canary was not collected"
    if any(statuses.get(id) not in (FAILED, ERROR, None) for id in own):
        return "a canary, a test that must fail, did not fail"
    return ""


def _place(id: str) -> tuple[str, str]:
    """File and function; a canary's name is no other function's of its file."""
    return _path(id), _base(id).rpartition("::")[2]


def _owner(id: str) -> str:
    """File and class, or the file alone."""
    return _base(id).rpartition("::")[0]


def _base(id: str) -> str:
    return id.partition("[")[0]


def _path(id: str) -> str:
    return id.partition("::")[0]


def _log(records: Sequence[Mapping[str, Any]], planted: set[tuple[str, str]], output: str) -> str:
    """For people: what failed and how, without the canaries; then what was printed."""
    lines = [
        f"{record['status']} {record['id']}\n{record['text']}".rstrip()
        for record in records
        if record["kind"] == "test" and _place(record["id"]) not in planted
    ]
    lines += [f"BROKEN {record['id']}\n{record['text']}" for record in records if record["kind"] == "broken"]
    return "\n".join([*lines, *([f"printed:\n{output}"] if output.strip() else [])])[:MAX_LOG_CHARS]


def _source(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")

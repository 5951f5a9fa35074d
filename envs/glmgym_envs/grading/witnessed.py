"""A test command run as it stands, with pytest's own signed word beside the log it prints.

Owned here: getting the witness (``witness.py``) into the box and into the run, and reading what it said. The command's
log is text that code under test can write to; what a witness says comes from pytest by way of the runner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.sandbox import BoxFileError, Sandbox
from glmgym_envs.grading import pytest_run
from glmgym_envs.grading.trusted import PYTHON, random_name

LOG_BYTES = 12 << 20  # of each end of the log
_MODULES = ("__init__.py", "grading/__init__.py", "grading/plugin.py", "grading/canary.py", "grading/witness.py")
_OPTION = "-p glmgym_envs.grading.witness"
_WORSE = ("PASSED", "XFAIL", "SKIPPED", "XPASS", "FAILED", "ERROR")


@dataclass(frozen=True, slots=True)
class Heard:
    """What a run printed and what its witnesses said.

    ``statuses`` are by id as pytest's log writes it; where two sessions name one test, the worse counts.
    """

    log: str
    sessions: int
    statuses: Mapping[str, str]
    flags: tuple[str, ...] = ()  # why the witnesses cannot be believed
    timed_out: bool = False
    exit_code: int = 0


async def run_witnessed(
    box: Sandbox,
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: str,
    env: Mapping[str, str],
    python: str = PYTHON,
    witness: bool = True,
) -> Heard | None:
    """Run a command; ``None`` if the runner's word did not come through: it was stopped, or its results destroyed.

    Args:
        python: an interpreter of the box, from 3.7 on, for the runner.
        witness: whether a pytest that the command starts is to report.

    Raises:
        SandboxDead: the box is gone.
    """
    place = f"/tmp/{random_name()}"
    modules = _modules()
    for name, content in modules.items():
        await box.write(f"{place}/glmgym_envs/{name}", content)
    said = {"PYTEST_ADDOPTS": _OPTION, "PYTHONPATH": place, "GLMGYM_WITNESS": f"{place}/socket"}
    job: dict[str, Any] = {
        "python": [python, "-I", "-S", "-B"],
        "argv": list(argv),
        "root": cwd,
        "env": {**env, **(said if witness else {})},
        "inherits": True,
        "timeout_s": timeout_s,
        "results": f"/tmp/{random_name()}",
        "socket": f"{place}/socket",
        "kept_bytes": LOG_BYTES,
    }
    told = await pytest_run.run_job(box, job)
    if told is None:
        return None
    changed = [
        name for name, content in modules.items() if not await _is_same(box, f"{place}/glmgym_envs/{name}", content)
    ]
    sessions = [_read(each) for each in told["sessions"]]
    flags = [flag for _, found in sessions for flag in found]
    flags += [f"the grader's own {name} was changed while the tests ran" for name in changed]
    statuses: dict[str, str] = {}
    for own, _ in sessions:
        for id, status in own.items():
            statuses[id] = max(status, statuses.get(id, status), key=_WORSE.index)
    return Heard(
        told["output"],
        len(sessions),
        statuses,
        tuple(dict.fromkeys(flags)),
        told["timed_out"],
        told["exit"],
    )


def _modules() -> dict[str, bytes]:
    here = Path(__file__).parents[1]
    return {name: b"" if name.endswith("__init__.py") else (here / name).read_bytes() for name in _MODULES}


async def _is_same(box: Sandbox, path: str, content: bytes) -> bool:
    try:
        return hashlib.sha256(await box.read(path)).digest() == hashlib.sha256(content).digest()
    except BoxFileError:
        return False


def _read(session: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The statuses of one session, and why it cannot be believed."""
    records, foreign = pytest_run.records_of(session["stream"], session["nonce"])
    flags = ["something else wrote into the stream of results"] if foreign else []
    starts = [each for each in records if each["kind"] == "start"]
    ends = [each for each in records if each["kind"] == "end"]
    collected = {str(id) for each in starts for id in each["ids"]}
    statuses = {str(each["id"]): "ERROR" for each in records if each["kind"] == "broken"}
    for each in records:
        if each["kind"] == "test":
            id, status = str(each["id"]), str(each["status"])
            if id not in collected or status not in _WORSE:
                flags.append(f"a result that is no collected test's: {id}")
            statuses[id] = max(status, statuses.get(id, status), key=lambda name: _WORSE.index(name))
    if len(ends) != 1 or len(starts) > 1:
        flags.append("pytest was stopped before it came to its own end")
    flags += [f"the code under test replaced {each['name']}" for each in records if each["kind"] == "changed"]
    flags += [str(each["text"]) for each in records if each["kind"] == "canary"]
    return statuses, flags


def as_log(statuses: Mapping[str, str]) -> str:
    """The statuses as pytest's own summary, for the reader of a log."""
    lines = [f"{status} {id}" for id, status in statuses.items()]
    return "\n".join(["=== short test summary info ===", *lines, "=== no tests ran ==="]) + "\n"

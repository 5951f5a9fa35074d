"""Imported tasks, whose reward is what the log of their test command says: judged here, never in the box.

The log counts only as far as pytest's own word beside it agrees (``witnessed.py``). Where the tests are not run by
pytest there is no such word, and the log has to be without contradiction (``verdicts.suspicions``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmgym.errors import ScorerFailure
from glmgym.sandbox import Sandbox
from glmgym_envs.grading.modes import BroughtDown
from glmgym_envs.grading.trusted import random_name
from glmgym_envs.grading.witnessed import Heard, as_log, run_witnessed
from glmgym_envs.harbor import offline
from glmgym_envs.harbor.box import Boxes
from glmgym_envs.harbor.task import RULE, TEST, Stage
from glmgym_envs.importers.verdicts import END, EXIT_CODE, START, Unparsable, grade

LAST_CHARS = 2_000  # of the log, in messages
TESTS = "/tests"


async def judge_log(
    boxes: Boxes, stage: Stage, box: Sandbox, python: str, env: Mapping[str, str]
) -> tuple[float, str, tuple[str, ...], str]:
    """Run ``test.sh`` in a grading box that has the tests; the reward, its reason, flags, and the log.

    Raises:
        BroughtDown: the runner was stopped while the tests ran.
        ScorerFailure: the log shows no run and no pytest was at work, or the time was over before one was.
    """
    settings = boxes.task.own.log
    assert settings is not None
    rule = await asyncio.to_thread(_rule, stage.tests)
    # Compiled files beside the sources are the policy's: none of them is read.
    variables = {**env, "PYTHONPYCACHEPREFIX": f"/tmp/{random_name()}"}
    variables |= {"GLMGYM_RESTORED": "1"} if settings.repository else {}
    heard = await run_witnessed(
        box,
        ["/bin/sh", "-c", f"{offline.EXPORT}; chmod +x {TESTS}/{TEST}; {TESTS}/{TEST}"],
        timeout_s=stage.verifier.timeout_sec,
        cwd=boxes.grading_workdir(stage),
        env=variables,
        python=python,
        witness=settings.witness,
    )
    if heard is None:
        raise BroughtDown(f"{boxes.task.id}: what runs the tests was stopped, or its results were destroyed")
    try:
        value, reason, flags = judge(heard, rule, witness=settings.witness)
    except Unparsable as error:
        late = f"[verifier] timeout_sec = {stage.verifier.timeout_sec:g} is over; " if heard.timed_out else ""
        tail = f"; the tests' output ends with:\n{heard.log[-LAST_CHARS:]}"
        raise ScorerFailure(f"{boxes.task.id}: {late}no verdict: {error}{tail}") from error
    return value, reason, flags, heard.log


def judge(heard: Heard, rule: Mapping[str, Any], *, witness: bool) -> tuple[float, str, tuple[str, ...]]:
    """The reward by the worse of what the log and pytest say, its reason, and the flags, of which one makes it 0.

    Raises:
        Unparsable: neither says anything.
    """
    flags = list(heard.flags)
    said: dict[str, Any] = {"reward": 0.0}
    if heard.timed_out:
        if not heard.sessions:
            raise Unparsable("the tests did not come to an end")
        flags.append("the tests did not finish in time")
    else:
        try:
            said = grade(heard.log, rule)
        except Unparsable:
            if not heard.sessions:
                raise
            flags.append("the log shows no run, though pytest was at work")
    value = float(said["reward"])
    if not witness:
        flags += said.get("flags", ())
    elif not heard.sessions:
        flags.append("no pytest of the test command reported to the grader")
    else:
        own = grade(_whole(as_log(heard.statuses), rule), rule)
        if value > own["reward"]:
            flags.append("the log says that the task is solved, and pytest does not")
        value = min(value, float(own["reward"]))
    return (0.0 if flags else value), _reason(said), tuple(dict.fromkeys(flags))


def _whole(log: str, rule: Mapping[str, Any]) -> str:
    """A log as the rule wants it."""
    return f"{START}\n{log}{END}\n{EXIT_CODE}0\n" if rule["rule"] == "swe-bench" else log


def _rule(tests: Sequence[Path]) -> dict[str, Any]:
    place = next(place for place in reversed(tests) if (place / RULE).is_file())  # load_task saw to it
    rule: dict[str, Any] = json.loads((place / RULE).read_text("utf-8"))
    return rule


def _reason(said: Mapping[str, Any]) -> str:
    """What kept the log's own verdict from 1."""
    failed = said.get("failed", said.get("differ", []))
    ids = [id for ids in failed.values() for id in ids] if isinstance(failed, dict) else list(failed)
    shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return said.get("reason", "") or (f"not as it must be: {shown}" if ids else "")

"""One attempt at a task as Harbor lays a trial out on disk, for tools that read those.

``config.json``, ``result.json``, ``exception.txt``, ``verifier/`` and ``artifacts/``. What a trajectory does not hold
(the time of day of each phase) is ``null``, not made up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmgym.trajectory import Trajectory
from glmgym_envs.harbor.artifacts import Collected
from glmgym_envs.harbor.schema import MANIFEST
from glmgym_envs.harbor.task import HarborTask
from glmgym_envs.harbor.verify import STDOUT, Verdict

_PHASES = {"environment_setup": ("reset",), "agent_execution": ("generate", "step"), "verifier": ("score",)}


def write_trial(
    directory: Path,
    task: HarborTask,
    trajectory: Trajectory,
    *,
    agent: str = "glmgym",
    verdicts: Sequence[tuple[str, Verdict]] = (),
    artifacts: Sequence[Collected] = (),
) -> None:
    """Write a trial to ``directory``, which must not exist yet.

    Args:
        verdicts: by step, as ``HarborEnv.verdicts`` has them.
        artifacts: see ``gather``.

    Raises:
        FileExistsError: ``directory`` is there.
    """
    directory.mkdir(parents=True)
    for name in ("agent", "verifier", "artifacts"):
        (directory / name).mkdir()
    _write(
        directory / "config.json", {"task": {"path": str(task.directory)}, "trial_name": trajectory.id, "agent": agent}
    )
    _write(directory / "result.json", _result(task, trajectory, agent, verdicts))
    if (failure := trajectory.outcome.failure) is not None:
        (directory / "exception.txt").write_text(f"{failure.type}: {failure.message}\n", "utf-8")
    for step, verdict in verdicts:
        place = directory / "steps" / step / "verifier" if step else directory / "verifier"
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "reward.json", _values(verdict))
        (place / STDOUT).write_text(verdict.stdout, "utf-8", errors="surrogateescape")
    for each in artifacts:
        if each.path is not None:
            place = directory / "artifacts" / each.artifact.place
            source = each.path / Path(each.artifact.source).name if each.is_file else each.path
            place.parent.mkdir(parents=True, exist_ok=True)
            if each.is_file:
                shutil.copy(source, place)
            else:
                shutil.copytree(source, place, dirs_exist_ok=True)
    _write(directory / "artifacts" / MANIFEST, [each.manifest() for each in artifacts])


def _result(
    task: HarborTask, trajectory: Trajectory, agent: str, verdicts: Sequence[tuple[str, Verdict]]
) -> dict[str, Any]:
    outcome, timings = trajectory.outcome, trajectory.provenance.timings_s
    failure = outcome.failure
    return {
        "id": trajectory.id,
        "task_name": task.config.task.name or task.id,
        "trial_name": trajectory.id,
        "task_checksum": task.checksum,
        "agent_info": {"name": agent, "model_info": {"name": trajectory.provenance.engine}},
        "agent_result": {"n_output_tokens": trajectory.num_sampled, "n_turns": trajectory.num_turns},
        "verifier_result": None if failure else {"rewards": {each.name: each.value for each in outcome.rewards}},
        "exception_info": failure
        and {
            "exception_type": failure.type,
            "exception_message": failure.message,
            "exception_traceback": "",
            "occurred_at": None,
        },
        **{
            phase: {
                "started_at": None,
                "finished_at": None,
                "duration_sec": sum(timings.get(name, 0.0) for name in names),
            }
            for phase, names in _PHASES.items()
        },
        "step_results": [
            {"step_name": step, "verifier_result": {"rewards": _values(verdict)}} for step, verdict in verdicts if step
        ],
    }


def _values(verdict: Verdict) -> dict[str, float]:
    return {reward.name: reward.value for reward in verdict.rewards}


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")

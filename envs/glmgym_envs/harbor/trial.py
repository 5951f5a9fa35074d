"""One attempt at a task as Harbor lays a trial out on disk, for tools that read those.

``config.json``, ``result.json``, ``exception.txt``, ``agent/``, ``verifier/`` and ``artifacts/``. What an attempt does
not hold (the time of day of each phase) is ``null``, not made up.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glmgym.errors import ConfigError
from glmgym.evaluation import Attempt
from glmgym.registry import EnvSpec
from glmgym_envs.harbor.artifacts import Collected
from glmgym_envs.harbor.env import HarborEnv
from glmgym_envs.harbor.schema import MANIFEST
from glmgym_envs.harbor.task import HarborTask
from glmgym_envs.harbor.verify import STDOUT, Verdict

AGENT = "glmgym"
_PHASES = {"environment_setup": ("reset",), "agent_execution": ("generate", "step"), "verifier": ("score",)}


def trial_writer(spec: EnvSpec, policy: str) -> Callable[[Path, Attempt, Mapping[str, Any]], None]:
    """Writes attempts of an environment: takes a new directory, the attempt, and its ATIF document.

    Raises:
        ConfigError: its tasks are no task directories.
    """
    env = spec.make()
    if not isinstance(env, HarborEnv):
        raise ConfigError(
            f"the tasks of {spec.id} are no task directories, and Harbor's results are of those; "
            "--atif writes attempts at any task"
        )
    tasks = env.known_tasks

    def write(directory: Path, attempt: Attempt, document: Mapping[str, Any]) -> None:
        write_trial(directory, tasks[attempt.task_id], attempt, policy=policy, document=document)

    return write


def write_trial(
    directory: Path,
    task: HarborTask,
    attempt: Attempt,
    *,
    policy: str = "",
    document: Mapping[str, Any] | None = None,
    verdicts: Sequence[tuple[str, Verdict]] = (),
    artifacts: Sequence[Collected] = (),
) -> None:
    """Write a trial to ``directory``, which must not exist yet and whose name is the trial's.

    Args:
        policy: what the attempt's policy is called.
        document: the attempt in ATIF.
        verdicts: by step, as ``HarborEnv.verdicts`` has them; without them ``reward.json`` holds the attempt's rewards.
        artifacts: see ``gather``.

    Raises:
        FileExistsError: ``directory`` is there.
    """
    directory.mkdir(parents=True)
    for name in ("agent", "verifier", "artifacts"):
        (directory / name).mkdir()
    config = {
        "task": {"path": str(task.directory)},
        "trial_name": directory.name,
        "agent": {"name": AGENT, "model_name": policy},
    }
    _write(directory / "config.json", config)
    _write(directory / "result.json", {**_result(task, attempt, directory, policy, verdicts), "config": config})
    if document is not None:
        _write(directory / "agent" / "trajectory.json", document)
    outcome = attempt.outcome
    if outcome.failure is not None:
        (directory / "exception.txt").write_text(f"{outcome.failure.type}: {outcome.failure.message}\n", "utf-8")
    elif not verdicts:
        _write(directory / "verifier" / "reward.json", {each.name: each.value for each in outcome.rewards})
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
    task: HarborTask, attempt: Attempt, directory: Path, policy: str, verdicts: Sequence[tuple[str, Verdict]]
) -> dict[str, Any]:
    outcome, timings = attempt.outcome, attempt.transcript.timings_s
    failure = outcome.failure
    ended = datetime.fromisoformat(attempt.started_at) + timedelta(seconds=attempt.wall_s)
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, attempt.key)),
        "task_name": task.config.task.name or task.id,
        "trial_name": directory.name,
        "trial_uri": directory.resolve().as_uri(),
        "task_id": {"path": str(task.directory)},
        "source": task.config.source or None,
        "task_checksum": task.checksum,
        "agent_info": {"name": AGENT, "version": version("glmgym"), "model_info": {"name": policy, "provider": None}},
        "agent_result": _usage(attempt),
        "verifier_result": None if failure else {"rewards": {each.name: each.value for each in outcome.rewards}},
        "exception_info": failure
        and {
            "exception_type": failure.type,
            "exception_message": failure.message,
            "exception_traceback": "",
            "occurred_at": ended.isoformat(timespec="milliseconds"),
        },
        "started_at": attempt.started_at,
        "finished_at": ended.isoformat(timespec="milliseconds"),
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


def _usage(attempt: Attempt) -> dict[str, Any]:
    """Tokens as far as the policy told them; a scripted one has none."""
    requests = attempt.transcript.requests
    cached = [each.cached_tokens for each in requests if each.cached_tokens is not None]
    return {
        "n_input_tokens": sum(each.prompt_tokens for each in requests) or None,
        "n_cache_tokens": sum(cached) if cached else None,
        "n_output_tokens": attempt.num_sampled or None,
        "cost_usd": None,
        "metadata": {
            "n_turns": attempt.num_turns,
            "stop": str(attempt.outcome.stop),
            "flags": dict(attempt.transcript.flags),
        },
    }


def _values(verdict: Verdict) -> dict[str, float]:
    return {reward.name: reward.value for reward in verdict.rewards}


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", "ascii")

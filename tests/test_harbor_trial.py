"""A trial on disk, as tools of the field read it, with artifacts of a real box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import GOLDEN

from glmgym.env import ScoreView, Task
from glmgym.messages import ToolCall, assistant
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym.trajectory import Failure, Outcome, Provenance, Stop, Trajectory
from glmgym_envs.harbor import load_task, spec_of
from glmgym_envs.harbor.artifacts import gather
from glmgym_envs.harbor.env import HarborEnv
from glmgym_envs.harbor.trial import write_trial
from glmgym_sandboxes.bubblewrap import open_provider


def _json(file: Path) -> Any:
    return json.loads(file.read_text())


@pytest.mark.bubblewrap
async def test_a_trial_holds_rewards_output_and_artifacts(base_works: None, tmp_path: Path) -> None:
    spec, task = spec_of(GOLDEN / "separate"), load_task(GOLDEN / "separate")
    provider = open_provider({"warm": 0})
    try:
        record: Task = spec.tasks.task("heldout", 0)
        own = spec.box_of(record)
        assert own is not None
        box = await provider.open(own)

        async def open_box(wanted: BoxSpec | None = None) -> Sandbox:
            return await provider.open(wanted or own)

        env = spec.make()
        assert isinstance(env, HarborEnv)
        await env.reset(record, box)
        work = "mkdir parts; echo 1 > parts/one; touch parts/x.tmp; echo done > report.txt; ln -s / link"
        await env.step(assistant("", ToolCall("c", "shell", {"command": work})))
        artifacts = await gather(box, task.stages[0].artifacts, tmp_path / "kept")
        rewards = await env.score(ScoreView(record, (), box, open_box))
    finally:
        await provider.close()
    outcome = Outcome(Stop.FAILED, failure=Failure("engine", "EngineFailure", "no answer"))
    provenance = Provenance(timings_s={"reset": 1.0, "generate": 2.0, "step": 3.0, "score": 4.0})
    trajectory = Trajectory("t1", record.id, spec.id, (), outcome, provenance)
    trial = tmp_path / "trial"
    write_trial(trial, task, trajectory, verdicts=env.verdicts, artifacts=artifacts)

    assert [reward.value for reward in rewards] == [0.0]  # there is no running total
    assert _json(trial / "verifier/reward.json") == {"reward": 0.0}
    assert (trial / "verifier/test-stdout.txt").read_text() == "graded 0\n"
    assert (trial / "artifacts/app/report.txt").read_text() == "done\n"
    assert [file.name for file in sorted((trial / "artifacts/all-parts").iterdir())] == ["one"]
    report, parts, logs = _json(trial / "artifacts/manifest.json")
    assert (report["source"], report["type"], report["bytes"]) == ("/app/report.txt", "file", 5)
    assert (parts["destination"], parts["type"], parts["bytes"]) == ("all-parts", "directory", 2)
    assert logs["destination"] == "logs"
    result = _json(trial / "result.json")
    assert result["task_checksum"] == task.checksum
    assert (result["verifier_result"], result["exception_info"]["exception_type"]) == (None, "EngineFailure")
    assert (result["agent_execution"]["duration_sec"], result["verifier"]["duration_sec"]) == (5.0, 4.0)
    assert (trial / "exception.txt").read_text() == "EngineFailure: no answer\n"
    with pytest.raises(FileExistsError):
        write_trial(trial, task, trajectory)

"""A trial on disk, as tools of the field read it, with artifacts of a real box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluations import invoke, write_environment
from harbor_tasks import GOLDEN, write_task

from glmgym.env import ScoreView, Task
from glmgym.evaluation import Attempt
from glmgym.messages import ToolCall, assistant
from glmgym.rollout import Request, Transcript
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym.trajectory import Failure, Outcome, Stop
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
    timings = {"reset": 1.0, "generate": 2.0, "step": 3.0, "score": 4.0}
    transcript = Transcript((), (), outcome, timings, (Request(70, 5, 1.0), Request(80, 6, 1.0, 64)), {})
    began = "2025-06-01T10:00:00.000+00:00"
    attempt = Attempt(f"{record.id}/0", "f" * 64, record.id, spec.id, 0, 1, began, 10.5, transcript)
    trial = tmp_path / "trial"
    write_trial(trial, task, attempt, policy="glm", verdicts=env.verdicts, artifacts=artifacts)

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
    assert (result["started_at"], result["finished_at"]) == (began, "2025-06-01T10:00:10.500+00:00")
    told = result["agent_result"]
    assert (told["n_input_tokens"], told["n_cache_tokens"], told["n_output_tokens"]) == (150, 64, 11)
    assert (trial / "exception.txt").read_text() == "EngineFailure: no answer\n"
    with pytest.raises(FileExistsError):
        write_trial(trial, task, attempt)


@pytest.mark.bubblewrap
def test_an_evaluation_is_exported_as_trials(base_works: None, tmp_path: Path) -> None:
    """Two tasks, two attempts each: the rewards, the tasks by name, path and content, and what was said."""
    tasks, out, trials = tmp_path / "some-tasks", tmp_path / "out", tmp_path / "trials"
    tasks.mkdir()
    easy = write_task(tasks / "easy", head='[task]\nname = "house/easy"\n')
    write_task(tasks / "never", "echo 0.25 > /logs/verifier/reward.txt")
    ask = ("eval", "--suite", tasks, "--policy", "scripted:random", "--k", 2, "--out", out)
    assert not invoke(*ask).error
    ask = ("export", out, "--harbor", trials)
    assert "give the --suite that" in invoke(*ask).error
    done = invoke(*ask, "--suite", tasks, "--atif", tmp_path / "atif")
    assert done.output == f"4 documents written to {tmp_path / 'atif'}\n4 trials written to {trials}\n"
    assert sorted(each.name for each in trials.iterdir()) == ["easy__0", "easy__1", "never__0", "never__1"]
    results = {each.name: _json(each / "result.json") for each in trials.iterdir()}
    assert {name: result["verifier_result"]["rewards"]["reward"] for name, result in results.items()} == {
        "easy__0": 1.0,
        "easy__1": 1.0,
        "never__0": 0.25,
        "never__1": 0.25,
    }
    assert _json(trials / "never__1/verifier/reward.json") == {"reward": 0.25}
    result = results["easy__1"]
    assert (result["task_name"], result["trial_name"]) == ("house/easy", "easy__1")
    assert result["task_checksum"] == load_task(easy).checksum
    assert result["config"] == _json(trials / "easy__1/config.json")
    assert result["config"]["task"]["path"] == str(easy)
    assert result["agent_info"]["model_info"]["name"] == "scripted:random"
    assert len({each["id"] for each in results.values()}) == 4
    assert _json(trials / "easy__1/agent/trajectory.json") == _json(tmp_path / "atif/easy_1.json")
    assert "is not empty" in invoke(*ask, "--suite", tasks).error
    ask = (*ask[:-1], tmp_path / "more", "--suite", tasks)
    (easy / "instruction.md").write_text("Other words.")
    assert "are others or changed since" in invoke(*ask).error
    assert not (tmp_path / "more").exists()


def test_attempts_at_other_tasks_are_no_trials(tmp_path: Path) -> None:
    suite, out = write_environment(tmp_path, name="plain"), tmp_path / "out"
    assert not invoke("eval", "--suite", suite, "--policy", "scripted:expert", "--tasks", 2, "--out", out).error
    ask = ("export", out, "--harbor", tmp_path / "trials")
    assert "the tasks of plain-v0 are no task directories" in invoke(*ask, "--suite", suite).error
    assert "say what to write: --atif DIR" in invoke("export", out).error
    assert "--suite belongs to --harbor" in invoke("export", out, "--atif", tmp_path / "a", "--suite", suite).error
    assert "holds no evaluation" in invoke("export", tmp_path, "--harbor", tmp_path / "trials").error

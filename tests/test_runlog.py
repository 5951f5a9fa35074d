"""The files of a run: numbers that add up, JSON that any reader accepts, and nothing of what a kill undid."""

from __future__ import annotations

import json
import math
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_glm import trajectory

from glmgym.errors import GlmgymError
from glmgym.evaluation import report
from glmgym.events import EvaluationFinished, ParityChecked, RolloutFinished, RunStarted, StepFinished
from glmgym.trajectory import Failure, Outcome, Provenance, Stop, Trajectory
from glmgym_trainers.runlog import RolloutWindow, RunLog, batch_metrics, read_rows


def _evaluated(label: str, rewards: tuple[float, ...]) -> EvaluationFinished:
    played = [replace(trajectory(f"e{n}", ["pa"], reward), task_id=f"k{n}") for n, reward in enumerate(rewards)]
    return EvaluationFinished(label, report(played, "pictured-v0", "heldout", 1).summary())


def _failed(id: str) -> Trajectory:
    whole = trajectory(id, ["pa"])
    return replace(whole, outcome=Outcome(Stop.FAILED, failure=Failure("sandbox", "SandboxDead", "gone", True)))


def _strict(path: Path) -> list[dict[str, Any]]:
    """Rows as a reader sees them that knows JSON and not Python."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def _scalars(run: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 6)) for event in events.Scalars(name)]


def test_events_with_numbers_become_rows_in_order(tmp_path: Path) -> None:
    with RunLog(tmp_path, upto_step=0) as log:
        log(RunStarted(tmp_path, 2, 0))  # no number
        log(_evaluated("before", (1.0, 0.0)))
        log(ParityChecked(1e-5, 1e-7, 12))
        log(StepFinished(1, {"batch/reward": 0.5}))
        log(_evaluated("after", (1.0, 1.0)))
    rows = _strict(tmp_path / "metrics.jsonl")
    assert [(row["event"], row["step"]) for row in rows] == [
        ("evaluation", 0),
        ("parity", 0),
        ("step", 1),
        ("evaluation", 1),
    ]
    assert (rows[0]["overall"]["mean"], rows[3]["overall"]["mean"], rows[2]["batch/reward"]) == (0.5, 1.0, 0.5)
    assert _scalars(tmp_path, "eval/heldout_success") == [(0, 0.5), (1, 1.0)]


def test_json_knows_no_nan(tmp_path: Path) -> None:
    """A critic whose returns do not vary explains NaN of them; a strict reader must still read the row."""
    numbers = {"value/explained_variance": math.nan, "optim/grad_norm_max": math.inf, "batch/reward": np.float64(0.5)}
    for upto_step in (0, 1):  # written, and written again by the resumed run
        with RunLog(tmp_path, upto_step=upto_step) as log:
            if not upto_step:
                log(StepFinished(1, numbers))
        (row,) = _strict(tmp_path / "metrics.jsonl")
        assert (row["value/explained_variance"], row["optim/grad_norm_max"], row["batch/reward"]) == (None, None, 0.5)


def test_an_evaluation_in_which_every_attempt_failed_is_recorded_and_drawn(tmp_path: Path) -> None:
    """There is no mean then; neither the run nor its picture may break on that."""
    with RunLog(tmp_path, upto_step=0) as log:
        log(EvaluationFinished("before", report([_failed("e0")], "pictured-v0", "heldout", 1).summary()))
        log(StepFinished(1, {"rollout/reward": math.nan}))
        log(_evaluated("after", (0.5,)))  # one task with part of the reward: a mean without an interval
        log.plot()
    rows = _strict(tmp_path / "metrics.jsonl")
    assert (rows[0]["overall"]["mean"], rows[0]["failures"]) == (None, {"sandbox": 1})
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_resumed_run_drops_the_rows_of_lost_updates(tmp_path: Path) -> None:
    """Three updates, the newest checkpoint holds the first; the line of the fourth was torn by the kill."""
    with RunLog(tmp_path, upto_step=0) as log:
        log(_evaluated("before", (1.0, 0.0)))
        for step in (1, 2, 3):
            log(StepFinished(step, {"batch/reward": step / 10}))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 4, "batch/rew')
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    (events,) = (tmp_path / "tensorboard").glob("events*")
    events.rename(events.with_name("events.out.tfevents.1.first-life"))  # of another second: they are read by name
    with RunLog(tmp_path, upto_step=1) as log:
        assert [row["step"] for row in _strict(tmp_path / "metrics.jsonl")] == [0, 1]
        log(StepFinished(2, {"batch/reward": 0.9}))
    rows = _strict(tmp_path / "metrics.jsonl")
    assert [(row["step"], row.get("batch/reward")) for row in rows] == [(0, None), (1, 0.1), (2, 0.9)]
    assert _scalars(tmp_path, "batch/reward") == [(1, 0.1), (2, 0.9)]  # TensorBoard purges 2 and 3 of the first life


def test_the_clock_of_a_resumed_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"event": "step", "step": 1, "time_s": 100.0}\n')
    with RunLog(tmp_path, upto_step=1) as log:
        log(StepFinished(2, {}))
    assert 100.0 <= _strict(tmp_path / "metrics.jsonl")[1]["time_s"] < 110.0


def test_an_evaluation_counts_for_the_policy_it_was_made_with(tmp_path: Path) -> None:
    """A finished run that is resumed to go further is evaluated again at its new end; one that is not, is not."""
    with RunLog(tmp_path, upto_step=0) as log:
        assert not log.has_evaluation("before")
        log(_evaluated("before", (1.0, 0.0)))
        assert log.has_evaluation("before")
        log(StepFinished(1, {}))
        assert not log.has_evaluation("after")
        log(_evaluated("after", (1.0, 0.0)))
    with RunLog(tmp_path, upto_step=1) as log:
        assert log.has_evaluation("after")
        log(StepFinished(2, {}))
        assert not log.has_evaluation("after")


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunLog(tmp_path, upto_step=0) as log:
        log(StepFinished(1, {"batch/reward": 0.5}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
        try:
            with pytest.raises(GlmgymError, match=r"cannot be written: .*; make room and run again with --resume"):
                log(_evaluated("after", (1.0, 0.0)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_rows(tmp_path / "metrics.jsonl")[0]["batch/reward"] == 0.5


def test_a_batch_is_described_at_the_version_that_trains_on_it() -> None:
    """Tokens of version 3 trained at version 5 are 2 versions old; success is a whole reward, not part of one."""
    cut = trajectory("c", ["pa"], 0.0, stop=Stop.MAX_TURNS)
    batch = [trajectory("a", ["paa"], 1.0), trajectory("b", ["poa"], 0.5), cut, trajectory("d", ["p"], 0.5)]
    assert batch_metrics(batch, 5) == {
        "batch/reward": 0.5,
        "batch/success": 0.25,
        "batch/staleness": 2.0,
        "batch/staleness_max": 2.0,
        "batch/truncated": 0.25,
    }
    assert batch_metrics([trajectory("d", ["p"], 1.0)], 5)["batch/staleness_max"] == 0.0  # nothing sampled, nothing old


def test_a_window_counts_attempts_once_and_failures_apart() -> None:
    window = RolloutWindow()
    timed = replace(trajectory("a", ["ppaa"], 1.0), provenance=Provenance(timings_s={"wall": 2.0}))
    for played in (timed, trajectory("b", ["paaa", "pao"], 0.0), _failed("c")):
        window.add(RolloutFinished(played, 3))
    numbers = window.drain()
    assert numbers["rollout/reward"] == 0.5  # of two: a failure has none, and is no 0
    assert (numbers["rollout/failures"], numbers["rollout/sampled_tokens"]) == (1.0, 2 + 4 + 1)
    assert (numbers["rollout/context_tokens"], numbers["rollout/wall_s"]) == (4.0, 2.0)  # of one segment
    assert numbers["rollout/sampled_tokens_per_s"] == pytest.approx(7 / 3 * numbers["rollout/episodes_per_s"])
    assert window.drain()["rollout/episodes_per_s"] == 0.0

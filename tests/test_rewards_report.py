"""Each reward component over training, and the warning when one of them is bought with the outcome."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_glm import trajectory

from glmgym.events import RolloutFinished, StepFinished
from glmgym.metrics import Mean
from glmgym.trajectory import Outcome, Reward, Stop, Trajectory
from glmgym_trainers.reward_report import WINDOW, component_metrics, draw_rewards, suspicions
from glmgym_trainers.runlog import RolloutWindow, RunLog, batch_metrics, read_rows


def played(id: str, *rewards: Reward) -> Trajectory:
    return replace(trajectory(id, ["pa"]), outcome=Outcome(Stop.DONE, rewards))


def rows(outcomes: list[float], style: list[float]) -> list[dict[str, Any]]:
    """Rows of updates 1, 2, ... as the metrics file holds them."""
    return [
        {"event": "step", "step": n, "rollout/outcome": o, "reward/style": s, "shaping/style": s}
        for n, (o, s) in enumerate(zip(outcomes, style, strict=True), 1)
    ]


FALL, RISE = [0.8] * WINDOW + [0.4] * WINDOW, [0.1] * WINDOW + [0.9] * WINDOW


def test_components_are_averaged_by_name_before_their_weight() -> None:
    """Two episodes: style 0.2 and 0.6 at weight -0.5; one of them alone has a bonus."""
    window = RolloutWindow()
    style = [Reward("style", value, -0.5, shaping=True) for value in (0.2, 0.6)]
    window.add(RolloutFinished(played("a", Reward("done", 1.0), style[0]), 3))
    window.add(RolloutFinished(played("b", Reward("done", 0.0), style[1], Reward("bonus", 4.0, 0.25)), 3))
    numbers = window.drain()
    assert numbers["rollout/outcome"] == 1.0  # 1 and 0 + 0.25 * 4
    assert numbers["rollout/reward"] == pytest.approx(1.0 - 0.5 * 0.4)
    assert {name: numbers[name] for name in numbers if name.startswith(("reward/", "shaping/"))} == {
        "reward/done": 0.5,
        "reward/style": 0.4,
        "reward/bonus": 4.0,
        "shaping/style": -0.2,
    }


def test_two_rewards_of_one_name_are_one_line() -> None:
    twice = Outcome(Stop.DONE, (Reward("test", 1.0), Reward("test", 0.0)))
    assert component_metrics(twice)["reward/test"] == Mean(1.0, 2.0)


def test_success_is_about_the_outcome() -> None:
    """A bonus for style does not make a failed task a success, nor a penalty a solved one a failure."""
    flattered = played("a", Reward("done", 0.0), Reward("style", 2.0, shaping=True))
    solved = played("b", Reward("done", 1.0), Reward("length", 3.0, -0.2, shaping=True))
    assert batch_metrics([flattered], 3)["batch/success"] == 0.0
    assert batch_metrics([solved], 3)["batch/success"] == 1.0
    assert batch_metrics([solved], 3)["batch/reward"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("outcomes", "style", "flag"),
    [
        (FALL, RISE, 1.0),
        (RISE, RISE, 0.0),  # both get better
        (FALL, FALL, 0.0),  # both get worse
        (RISE, FALL, 0.0),
        ([0.5] * 2 * WINDOW, RISE, 0.0),  # style for free
        (FALL, [0.5] * 2 * WINDOW, 0.0),
        ([0.1 * 3] * WINDOW + [0.3] * WINDOW, RISE, 0.0),  # a difference in the last bit is none
        (FALL[1:], RISE[1:], 0.0),  # one update too few
        ([0.0] * 5 + FALL, [1.0] * 5 + RISE, 1.0),  # what lies before the two windows does not count
    ],
)
def test_a_component_is_suspect_only_when_it_rises_while_the_outcome_falls(
    outcomes: list[float], style: list[float], flag: float
) -> None:
    assert suspicions(rows(outcomes, style)) == {"suspect/style": flag}


@pytest.mark.parametrize(("drop", "flag"), [(0.28, 0.0), (0.29, 1.0)])
def test_a_move_is_more_than_three_standard_errors(drop: float, flag: float) -> None:
    """Halves that alternate by 0.2 about their mean have a variance of 0.4 / 9 each (ddof 1).

    The error of the difference is sqrt(2 * 0.4 / 9 / 10) = 0.0943, so 0.28 is below 3 errors (0.2828) and 0.29 above.
    """
    swing = [0.2, -0.2] * (WINDOW // 2)
    outcomes = [0.7 + each for each in swing] + [0.7 - drop + each for each in swing]
    assert 3 * math.sqrt(2 * 0.4 / 9 / WINDOW) == pytest.approx(0.2828, abs=1e-4)
    assert suspicions(rows(outcomes, RISE)) == {"suspect/style": flag}


def test_updates_without_numbers_do_not_count() -> None:
    """An update in which no attempt ended has no outcome; evaluations lie between."""
    known = rows(FALL, RISE)
    gap: list[dict[str, Any]] = [{"event": "step", "step": 99, "rollout/outcome": None}, {"event": "evaluation"}]
    assert suspicions([*known[:5], *gap, *known[5:]]) == {"suspect/style": 1.0}
    assert suspicions([]) == {}
    assert suspicions([{"event": "step", "step": 1, "rollout/outcome": 1.0, "reward/done": 1.0}]) == {}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2 * WINDOW, max_size=2 * WINDOW))
def test_a_component_that_is_the_outcome_is_never_suspect(series: list[float]) -> None:
    assert suspicions(rows(series, series)) == {"suspect/style": 0.0}


def test_the_log_says_it_once_and_goes_on_after_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning appears with the 20th update; a run that was killed and resumed between says nothing twice."""
    known = rows([*FALL, 0.3, 0.3], [*RISE, 1.0, 1.0])
    with RunLog(tmp_path, upto_step=0) as log:
        for row in known[:15]:
            log(StepFinished(row["step"], {name: row[name] for name in list(row)[2:]}))
    with RunLog(tmp_path, upto_step=12) as log, caplog.at_level(logging.WARNING):
        for row in known[12:]:
            log(StepFinished(row["step"], {name: row[name] for name in list(row)[2:]}))
        log.plot()
    assert [record.getMessage() for record in caplog.records if record.name == "glmgym_trainers.runlog"] == [
        "update 20: reward 'style' rises while the outcome falls: see rewards.png"
    ]
    written = read_rows(tmp_path / "metrics.jsonl")
    assert [row["suspect/style"] for row in written] == [0.0] * 19 + [1.0] * 3
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("suspect/style")] == [0.0] * 19 + [1.0] * 3
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_picture_without_components(tmp_path: Path) -> None:
    draw_rewards([{"event": "step", "step": 1}], tmp_path / "rewards.png")
    assert not (tmp_path / "rewards.png").exists()

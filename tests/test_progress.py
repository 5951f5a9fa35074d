"""The live view of a run, as text: what a person needs to see, and nothing torn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from glmgym.cli.progress import TrainingDisplay, _sparkline
from glmgym.errors import ConfigError
from glmgym.events import EvaluationFinished, EvaluationStarted, ParityChecked, RunStarted, StepFinished

METRICS = {
    "batch/success": 0.5,
    "batch/reward": 0.25,
    "batch/staleness": 1.0,
    "policy/trusted_fraction": 0.999,
    "rollout/sampled_tokens_per_s": 350.4,
    "rollout/episodes_per_s": 9.04,
}
OVERALL = {"mean": 0.48, "low": 0.42, "high": 0.54, "attempts": 256}


def _shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    with TrainingDisplay(console) as display:
        display(RunStarted(Path("runs/x"), 3, 1))
        display(EvaluationStarted("before", 256))
        summary = {"overall": OVERALL, "families": {"find": OVERALL}, "failures": {"sandbox": 2}}
        display(EvaluationFinished("before", summary))
        display(ParityChecked(1e-5, 1e-7, 1200))
        display(StepFinished(2, METRICS))
    return out.getvalue()


def test_a_pipe_gets_one_line_per_event() -> None:
    lines = _shown(terminal=False).splitlines()
    assert lines[0] == "runs/x: 3 updates, from update 1"
    assert lines[1].startswith("held-out success before: 0.480 (95 % interval 0.420 to 0.540, 256 episodes)")
    assert lines[1].endswith("failures apart: {'sandbox': 2}")
    assert lines[2] == "  find 0.48"
    assert lines[3] == "engine and trainer agree on 1200 sampled tokens to 1.0e-05 nats, mean 1.0e-07"
    assert lines[4].startswith(
        "update   2/3  success 0.50  reward 0.25  stale 1.0  trusted 0.999  tok/s 350  ep/s 9.0  left"
    )
    assert len(lines) == 5


def test_the_lines_of_a_run_fit_80_columns() -> None:
    """All but two: an evaluation with failures says so at its end, and a pipe's update has its number in front."""
    lines = _shown(terminal=False).splitlines()
    assert len(lines[1].split("; failures apart")[0]) <= 80
    assert max(len(lines[i]) for i in (0, 2, 3)) <= 80


def test_the_curve_has_a_block_per_update_from_none_to_all() -> None:
    """Eight heights: 0 is the lowest, 1 the full block, 0.5 = 4/8 the fifth; nothing outside 0..1 breaks it."""
    assert _sparkline([0.0, 0.124, 0.125, 0.5, 0.99, 1.0, -0.5, 2.0]) == "▁▁▂▅██▁█"


def test_the_view_goes_away_with_an_error() -> None:
    """What is live is erased and the cursor shown again, so that the error stands on a line of its own."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    display = TrainingDisplay(console)

    def fail() -> None:
        with display:
            display(RunStarted(Path("runs/x"), 3, 0))
            display(EvaluationStarted("before", 8))
            raise ConfigError("no")

    with pytest.raises(ConfigError):
        fail()
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")


def test_a_terminal_of_80_columns_shows_the_numbers_whole() -> None:
    shown = _shown(terminal=True)
    assert "success 0.50  reward 0.25  stale 1.0  trusted 0.999  tok/s 350  ep/s 9.0\n" in shown.replace("\r", "")
    assert "success by update ▅" in shown

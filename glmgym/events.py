"""What happens during a run, as small records. The console, the metrics file and tests consume the same stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glmgym.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RunStarted:
    directory: Path
    steps: int
    first_step: int  # 0 unless resumed


@dataclass(frozen=True, slots=True)
class ParityChecked:
    """Rollout engine and trainer agreed on the same ids: largest and mean absolute log-prob difference in nats."""

    largest: float
    mean: float
    tokens: int


@dataclass(frozen=True, slots=True)
class EvaluationStarted:
    label: str  # before, after
    episodes: int


@dataclass(frozen=True, slots=True)
class EpisodeEvaluated:
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class EvaluationFinished:
    label: str
    summary: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RolloutFinished:
    """An attempt ended, well or not; ``version`` is the engine's at that moment."""

    trajectory: Trajectory
    version: int


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One update was made, published and acknowledged."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    step: int
    path: Path


Event = (
    RunStarted
    | ParityChecked
    | EvaluationStarted
    | EpisodeEvaluated
    | EvaluationFinished
    | RolloutFinished
    | StepFinished
    | CheckpointSaved
)
OnEvent = Callable[[Event], None]

"""What happens during a run, as small records. The console, the metrics file and tests consume the same stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glmgym.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class StageStarted:
    """One stage of a recipe of several begins; its run's own events follow, unless it was finished before."""

    name: str
    number: int  # from 1
    total: int


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage has come to its end. ``before`` and ``after`` are its held-out scores, None where none were made."""

    name: str
    number: int
    total: int
    directory: Path
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


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
class TeacherChecked:
    """How far a teacher is from the student that it has not taught yet: an estimate of KL(student || teacher).

    ``kl`` is a mean over sampled tokens in nats. Above ``bound`` the two hardly come from one model, and the student
    may collapse instead of learning.
    """

    teacher: str
    kl: float
    tokens: int
    bound: float

    @property
    def is_far(self) -> bool:
        return self.kl > self.bound


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
    StageStarted
    | StageFinished
    | RunStarted
    | ParityChecked
    | TeacherChecked
    | EvaluationStarted
    | EpisodeEvaluated
    | EvaluationFinished
    | RolloutFinished
    | StepFinished
    | CheckpointSaved
)
OnEvent = Callable[[Event], None]

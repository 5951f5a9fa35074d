"""What a run leaves to read: ``metrics.jsonl``, TensorBoard events and two pictures. Fed by the events."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from glmgym.errors import GlmgymError
from glmgym.events import EvaluationFinished, Event, ParityChecked, RolloutFinished, StepFinished, TeacherChecked
from glmgym.metrics import Max, Mean, Metric, Sum, merge, values
from glmgym.trajectory import SegmentEnd, Trajectory
from glmgym_trainers.policy import replace_text
from glmgym_trainers.reward_report import SUSPECT, component_metrics, draw_rewards, suspicions

logger = logging.getLogger(__name__)


class RunLog:
    """Appends to the run's files. Reopened with ``upto_step``, it drops lines of later steps, which were lost."""

    def __init__(self, directory: Path, *, upto_step: int) -> None:
        self._directory = directory
        self._path = directory / "metrics.jsonl"
        self._rows = [row for row in read_rows(self._path) if row.get("step", 0) <= upto_step]
        replace_text(self._path, "".join(map(_line, self._rows)))
        self._file = self._path.open("a", buffering=1)
        self._board = SummaryWriter(str(directory / "tensorboard"), purge_step=upto_step + 1)
        self._started = time.time() - max((row.get("time_s", 0.0) for row in self._rows), default=0.0)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            self._board.close()
        except OSError as full:
            if error is None:  # else the error that ends the run is the one to read
                raise self._unwritable(full) from full

    def __call__(self, event: Event) -> None:
        """Write the events that carry numbers; the others pass.

        Raises:
            GlmgymError: the disk is full; what was written stays.
        """
        try:
            self._log(event)
        except OSError as full:
            raise self._unwritable(full) from full

    def _log(self, event: Event) -> None:
        match event:
            case StepFinished(step, metrics):
                self._step(step, metrics)
            case EvaluationFinished(label, summary):
                step = self._last_step()
                self._write({"event": "evaluation", "label": label, "step": step, **summary})
                mean = summary["overall"]["mean"]  # type: ignore[index]
                if mean is not None:  # None: every attempt failed
                    self._board.add_scalar("eval/heldout_success", mean, step)
            case ParityChecked(largest, mean, tokens):
                self._write({"event": "parity", "step": 0, "largest": largest, "mean": mean, "tokens": tokens})
            case TeacherChecked(teacher, kl, tokens, bound):
                row = {"event": "teacher", "step": self._last_step(), "teacher": teacher, "kl": kl, "tokens": tokens}
                self._write({**row, "bound": bound, "is_far": event.is_far})
            case _:
                pass

    def has_teacher(self, teacher: str) -> bool:
        """Whether a teacher's first distance from the student is written down."""
        return any((row.get("event"), row.get("teacher")) == ("teacher", teacher) for row in self._rows)

    def has_evaluation(self, label: str) -> bool:
        """Of the policy as it is now: a run that was resumed to go further is evaluated again at its new end."""
        wanted = ("evaluation", label, self._last_step())
        return any((row.get("event"), row.get("label"), row.get("step")) == wanted for row in self._rows)

    def plot(self) -> None:
        """Draw ``learning_curve.png`` and ``rewards.png`` from what was written."""
        draw_learning_curve(self._rows, self._directory / "learning_curve.png")
        draw_rewards(self._rows, self._directory / "rewards.png")

    def _step(self, step: int, metrics: Mapping[str, float]) -> None:
        before: Mapping[str, Any] = next((row for row in reversed(self._rows) if row.get("event") == "step"), {})
        row = {"event": "step", "step": step, **metrics}
        flags = suspicions([*self._rows, row])
        self._write({**row, **flags})
        for name, value in {**metrics, **flags}.items():
            self._board.add_scalar(name, value, step)
        for name in (name for name, flag in flags.items() if flag > before.get(name, 0.0)):
            component = name.removeprefix(SUSPECT)
            logger.warning("update %d: reward %r rises while the outcome falls: see rewards.png", step, component)

    def _last_step(self) -> int:
        return max((row.get("step", 0) for row in self._rows), default=0)

    def _write(self, row: Mapping[str, Any]) -> None:
        row = {**row, "time_s": round(time.time() - self._started, 3)}
        self._rows.append(row)
        self._file.write(_line(row))

    def _unwritable(self, error: OSError) -> GlmgymError:
        return GlmgymError(f"{self._directory} cannot be written: {error}; make room and run again with --resume")


class RolloutWindow:
    """Counts the attempts that ended since the last update."""

    def __init__(self) -> None:
        self._parts: list[Mapping[str, Metric]] = []
        self._since = time.monotonic()

    def add(self, event: RolloutFinished) -> None:
        self._parts.append(rollout_metrics(event.trajectory))

    def drain(self) -> dict[str, float]:
        """The window's numbers, rates included; the next window starts now."""
        parts, self._parts = self._parts, []
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        out = values(merge(parts))
        out["rollout/episodes_per_s"] = len(parts) / seconds
        out["rollout/sampled_tokens_per_s"] = out.get("rollout/sampled_tokens", 0.0) / seconds
        return out


def rollout_metrics(trajectory: Trajectory) -> dict[str, Metric]:
    """One attempt's numbers; a failed one counts as a failure and has no reward."""
    failed = not trajectory.outcome.is_valid
    out: dict[str, Metric] = {
        "rollout/failures": Sum(float(failed)),
        "rollout/sampled_tokens": Sum(float(trajectory.num_sampled)),
        "rollout/turns": Mean(float(trajectory.num_turns)),
        "rollout/context_tokens": Max(float(max(map(len, trajectory.segments), default=0))),
        "rollout/compactions": Mean(float(sum(s.ended_by is SegmentEnd.COMPACTED for s in trajectory.segments))),
    }
    if not failed:
        out |= {"rollout/reward": Mean(trajectory.outcome.total()), **component_metrics(trajectory.outcome)}
    for name, seconds in trajectory.provenance.timings_s.items():
        out[f"rollout/{name}_s"] = Mean(seconds)
    return out


def batch_metrics(batch: Sequence[Trajectory], version: int) -> dict[str, float]:
    """What an update at ``version`` is about to train on. Success is an outcome, shaping left aside, of at least 1."""
    totals = [trajectory.outcome.total() for trajectory in batch]
    ages = [version - trajectory.oldest_version for trajectory in batch if trajectory.num_sampled] or [0]
    return {
        "batch/reward": float(np.mean(totals)),
        "batch/success": float(np.mean([trajectory.outcome.result() >= 1.0 for trajectory in batch])),
        "batch/staleness": float(np.mean(ages)),
        "batch/staleness_max": float(max(ages)),
        "batch/truncated": float(np.mean([trajectory.outcome.stop.is_truncated for trajectory in batch])),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _line(row: Mapping[str, Any]) -> str:
    """One line of JSON. It knows no NaN and no infinity: such a number is null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def draw_learning_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Reward of the trained episodes per update, and held-out success before and after with 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps = [row for row in rows if row.get("event") == "step" and row.get("rollout/reward") is not None]
    warm_up = [row["step"] for row in steps if "policy/loss" not in row]
    # No number where every attempt failed, and no interval where there was a single task.
    evaluations = [r for r in rows if r.get("event") == "evaluation" and None not in r["overall"].values()]
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    if warm_up:
        span = (min(warm_up) - 0.5, max(warm_up) + 0.5)
        axes.axvspan(*span, color="#999999", alpha=0.25, linewidth=0, label="critic alone learns")
    axes.plot(
        [row["step"] for row in steps], [row["rollout/reward"] for row in steps],
        color="#4c72b0", alpha=0.7, marker=".", label="training episodes, mean reward",
    )  # fmt: skip
    for number, row in enumerate(evaluations):
        overall = row["overall"]
        axes.errorbar(
            row["step"], overall["mean"],
            yerr=[[overall["mean"] - overall["low"]], [overall["high"] - overall["mean"]]],
            fmt="o", capsize=4, color="#c44e52", label=None if number else "held-out success, 95 % interval",
        )  # fmt: skip
        # Outwards, beside the curve.
        side, align = (1, "left") if row["step"] else (-1, "right")
        axes.annotate(
            f"{overall['mean']:.2f}", (row["step"], overall["mean"]),
            textcoords="offset points", xytext=(8 * side, -4), ha=align,
        )  # fmt: skip
    axes.margins(x=0.1)
    bottom, top = axes.get_ylim()
    axes.set(xlabel="update", ylabel="success", ylim=(min(bottom, 0.0), max(top, 1.02)))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)

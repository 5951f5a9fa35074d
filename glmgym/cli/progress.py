"""The live view of a training run: a bar, the last update's numbers, and what the evaluations found.

A consumer of the event stream like any other; on a pipe it prints one line per update instead of a live view.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glmgym.events import (
    CheckpointSaved,
    EpisodeEvaluated,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    ParityChecked,
    RolloutFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    TeacherChecked,
)


class TrainingDisplay:
    """Shows events as they come. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._numbers = ""
        self._curve: list[float] = []  # success of each update's batch
        self._task: TaskID | None = None
        self._first_step_at = 0.0
        self._stage = ""  # what stands before the bar of a stage
        self._finished: list[StageFinished] = []
        self._run = RunStarted(directory=None, steps=0, first_step=0)  # type: ignore[arg-type]
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> TrainingDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Print a line above the live view."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)

    def __call__(self, event: Event) -> None:
        match event:
            case StageStarted(name, number, total):
                self._stage = f"stage {number}/{total} {name}: "
                self.note(f"stage {number} of {total}: {name}")
            case StageFinished():
                self._finished.append(event)
                if event.number == event.total:
                    self._console.print(_stage_table(self._finished))
            case RunStarted():
                self._run, self._numbers, self._curve = event, "", []
                self.note(f"{event.directory}: {event.steps} updates, from update {event.first_step}")
            case EvaluationStarted(label, episodes):
                self._show(f"held-out evaluation {label} training", episodes)
            case EpisodeEvaluated():
                self._advance()
            case EvaluationFinished(label, summary):
                self._hide()
                self.note(_evaluation_line(label, summary))
            case ParityChecked(largest, mean, tokens):
                self.note(f"engine and trainer agree on {tokens} sampled tokens to {largest:.1e} nats, mean {mean:.1e}")
            case TeacherChecked():
                self.note(_teacher_line(event))
            case RolloutFinished():
                self._training()
            case StepFinished(step, metrics):
                self._training()
                self._step(step, dict(metrics))
            case CheckpointSaved():
                pass

    def _render(self) -> RenderableType:
        if self._task is None:
            return Text()
        lines: list[RenderableType] = [self._progress]
        if self._numbers:
            lines += [Text(self._numbers), Text(f"success by update {_sparkline(self._curve[-60:])}", style="dim")]
        return Group(*lines)

    def _training(self) -> None:
        if self._task is None:
            self._show("training", self._run.steps, completed=self._run.first_step)
            self._first_step_at = time.monotonic()

    def _step(self, step: int, metrics: dict[str, float]) -> None:
        done = step - self._run.first_step
        left = (time.monotonic() - self._first_step_at) / max(done, 1) * (self._run.steps - step)
        numbers = _step_numbers(metrics)
        self._numbers = numbers
        self._curve.append(metrics.get("batch/success", 0.0))
        if self._task is not None:
            self._progress.update(self._task, completed=step, left=f"{left:.0f} s left")
        if not self._console.is_terminal:
            self.note(f"update {step:3d}/{self._run.steps}  {numbers}  left {left:.0f} s")
        if step == self._run.steps:
            self._hide()

    def _show(self, description: str, total: int, completed: int = 0) -> None:
        self._hide()
        self._task = self._progress.add_task(self._stage + description, total=total, completed=completed, left="")

    def _advance(self) -> None:
        if self._task is not None:
            self._progress.advance(self._task)

    def _hide(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def _sparkline(values: list[float]) -> str:
    """One block a value, from 0 (lowest) to 1 (full)."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(len(blocks) - 1, int(max(0.0, value) * len(blocks)))] for value in values)


def _step_numbers(metrics: dict[str, float]) -> str:
    """The numbers worth watching, on one line of 80 columns."""

    def number(name: str, form: str) -> str:
        return format(metrics[name], form) if name in metrics else "-"

    return "  ".join(
        (
            f"success {number('batch/success', '.2f')}",
            f"reward {number('batch/reward', '.2f')}",
            f"stale {number('batch/staleness', '.1f')}",
            f"trusted {number('policy/trusted_fraction', '.3f')}",
            f"tok/s {number('rollout/sampled_tokens_per_s', '.0f')}",
            f"ep/s {number('rollout/episodes_per_s', '.1f')}",
        )
    )


def _teacher_line(checked: TeacherChecked) -> str:
    line = f"teacher {checked.teacher}: {checked.kl:.3f} nats a token from the student, over {checked.tokens} tokens"
    if not checked.is_far:
        return line
    return f"{line}\n  warning: above {checked.bound:g}, they hardly come from one model; learning from it may collapse"


def _stage_table(stages: list[StageFinished]) -> Table:
    """One row a stage: held-out success before and after it, with the 95 % interval."""

    def score(overall: Mapping[str, object] | None) -> str:
        if overall is None or overall["mean"] is None:
            return "-"
        low, high = (f"{overall[end]:.3f}" if overall[end] is not None else "?" for end in ("low", "high"))
        return f"{overall['mean']:.3f} ({low} to {high})"

    table = Table(box=None, header_style="bold")
    for name in ("stage", "held out before", "held out after"):
        table.add_column(name, overflow="fold")
    for stage in stages:
        table.add_row(stage.directory.name, score(stage.before), score(stage.after))
    return table


def _evaluation_line(label: str, summary: Any) -> str:
    overall = summary["overall"]
    families = ", ".join(f"{name} {row['mean']:.2f}" for name, row in summary["families"].items())
    failures = f"; failures apart: {summary['failures']}" if summary["failures"] else ""
    return (
        f"held-out success {label}: {overall['mean']:.3f} "
        f"(95 % interval {overall['low']:.3f} to {overall['high']:.3f}, {overall['attempts']} episodes){failures}\n"
        f"  {families}"
    )

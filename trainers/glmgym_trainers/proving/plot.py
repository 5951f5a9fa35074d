"""The plot of an experiment: one panel per pair of axes, a line with a band per arm."""

from __future__ import annotations

import math
from itertools import cycle
from pathlib import Path

from glmgym_trainers.proving.experiment import Experiment, Panel
from glmgym_trainers.proving.runner import Results
from glmgym_trainers.proving.statistics import interval

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")  # Okabe and Ito


def draw(experiment: Experiment, results: Results, path: Path) -> None:
    """Means over seeds at each point of the curves, with bands of one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    count = len(experiment.panels)
    figure, axes = plt.subplots(1, count, figsize=(5.4 * count, 4.2), dpi=110, squeeze=False)
    for panel, axis in zip(experiment.panels, axes[0], strict=True):
        lines = {arm.name: line for arm in experiment.arms if (line := _line(results, arm.name, panel))}
        for colour, (name, line) in zip(cycle(COLOURS), lines.items(), strict=False):
            xs, means, errors = zip(*line, strict=True)
            axis.plot(xs, means, marker=".", color=colour, label=name)
            low, high = [[m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1)]
            axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
        if panel.x_max is not None:
            axis.set_xlim(right=panel.x_max)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(experiment.name)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _line(results: Results, arm: str, panel: Panel) -> list[tuple[float, float, float]]:
    """x, mean and standard error at each point of an arm's curve; x is a mean too, where seeds differ in it."""
    curves = [
        [(point[panel.x], point[panel.y]) for point in records[arm].curve if panel.x in point and panel.y in point]
        for records in results.cells.values()
    ]
    points = []
    for group in zip(*curves, strict=False):  # arms may end a point apart where time is simulated
        ys = interval([y for _, y in group])
        spread = math.sqrt(sum((y - ys.mean) ** 2 for _, y in group) / max(len(group) - 1, 1) / len(group))
        points.append((sum(x for x, _ in group) / len(group), ys.mean, spread))
    return points

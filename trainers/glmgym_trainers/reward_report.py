"""What a run says about its rewards: each component over training, and a warning when one is bought with the outcome.

Optimising a sum hides which part of it grew. A policy that hacks one component shows here as a line that climbs while
the task's outcome falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glmgym.metrics import Mean, Metric, merge
from glmgym.trajectory import Outcome

OUTCOME = "rollout/outcome"  # mean of ``Outcome.result``
VALUE = "reward/"  # + name: mean value of the component, before its weight
SHAPING = "shaping/"  # + name: mean weighted value of a shaping component, what the policy gains by it
SUSPECT = "suspect/"  # + name: 1 while the warning holds
WINDOW = 10  # updates on each side of the comparison
ERRORS = 3.0  # standard errors that count as a move; windows overlap, so 2 would cry wolf every other run


def component_metrics(outcome: Outcome) -> dict[str, Metric]:
    """One graded episode's outcome and components; components of one name are averaged."""
    parts: list[dict[str, Metric]] = [{OUTCOME: Mean(outcome.result())}]
    for reward in outcome.rewards:
        parts.append({VALUE + reward.name: Mean(reward.value)})
        if reward.shaping:
            parts.append({SHAPING + reward.name: Mean(reward.weight * reward.value)})
    return merge(parts)


def suspicions(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """For each shaping component of the newest update, 1 if it rises while the outcome falls, else 0.

    Over the latest ``2 * WINDOW`` updates with numbers, the means of the later half are compared with those of the
    earlier one. A difference beyond ``ERRORS`` standard errors of it is a move. What is compared is the weighted
    value: for a penalty, that it is paid less often.

    Args:
        rows: of the metrics file, oldest first.

    Returns:
        By metric name; empty while there are too few updates.
    """
    steps = [row for row in rows if row.get("event") == "step" and row.get(OUTCOME) is not None]
    if not steps:
        return {}
    names = [name.removeprefix(SHAPING) for name in steps[-1] if name.startswith(SHAPING)]
    return {SUSPECT + name: float(_is_bought(steps, SHAPING + name)) for name in names}


def _is_bought(steps: Sequence[Mapping[str, Any]], name: str) -> bool:
    known = [row for row in steps if row.get(name) is not None][-2 * WINDOW :]
    if len(known) < 2 * WINDOW:
        return False
    return _move([row[name] for row in known]) > 0 > _move([row[OUTCOME] for row in known])


def _move(series: Sequence[float]) -> int:
    """1, -1 or 0: whether the later half of a series lies above or below the earlier one, beyond chance."""
    earlier, later = np.asarray(series[:WINDOW], float), np.asarray(series[WINDOW:], float)
    change = float(later.mean() - earlier.mean())
    error = math.sqrt((earlier.var(ddof=1) + later.var(ddof=1)) / WINDOW)
    # Means of equal numbers may differ in their last bits.
    return int(math.copysign(1, change)) if abs(change) > max(ERRORS * error, 1e-9) else 0


def draw_rewards(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel for the outcome and one per component over the updates; updates under suspicion are shaded."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps = [row for row in rows if row.get("event") == "step" and row.get(OUTCOME) is not None]
    names = sorted({name for row in steps for name in row if name.startswith(VALUE)})
    if not names:
        return
    figure, panels = plt.subplots(
        1 + len(names), figsize=(7.2, 1.2 + 1.3 * (1 + len(names))), dpi=150, sharex=True, squeeze=False
    )
    for axes, name in zip(panels[:, 0], [OUTCOME, *names], strict=True):
        known = [row for row in steps if row.get(name) is not None]
        short = name.removeprefix(VALUE)
        is_shaping = any(SHAPING + short in row for row in steps)
        color = "#c44e52" if name == OUTCOME else "#8172b3" if is_shaping else "#4c72b0"
        axes.plot([row["step"] for row in known], [row[name] for row in known], color=color, marker=".")
        for row in steps:
            if row.get(SUSPECT + short) == 1.0:
                axes.axvspan(row["step"] - 0.5, row["step"] + 0.5, color="#dd8452", alpha=0.3, linewidth=0)
        axes.set_title(
            "outcome" if name == OUTCOME else f"{short} (shaping)" if is_shaping else short, loc="left", fontsize=9
        )
        axes.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("update; shaded: rises while the outcome falls")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)

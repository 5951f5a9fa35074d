"""How every benchmark ends: measured numbers against targets, as JSON or as a table, and an exit code.

The JSON object is ``{"measured": {...}, "targets": {name: {"bound": x, "direction": "max" | "min"}}, "short": [...]}``;
``short`` names the targets that were missed, and the exit code is 1 if there are any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

Direction = Literal["max", "min"]


def report(measured: Mapping[str, Any], targets: Mapping[str, tuple[float, Direction]], as_json: bool) -> int:
    """Print ``measured`` against ``targets`` and return the exit code.

    "max" bounds from above, "min" from below. A target that was not measured, or is not a finite number, is missed.
    """
    short = [name for name, (bound, direction) in targets.items() if not _meets(measured.get(name), bound, direction)]
    if as_json:
        bounds = {name: {"bound": bound, "direction": direction} for name, (bound, direction) in targets.items()}
        print(json.dumps({"measured": dict(measured), "targets": bounds, "short": short}))
        return 1 if short else 0
    for name in [*measured, *(name for name in targets if name not in measured)]:
        value = measured.get(name, "not measured")
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        verdict = ""
        if name in targets:
            bound, direction = targets[name]
            sign = "<=" if direction == "max" else ">="
            verdict = f"  {sign} {bound:g}  {'SHORT' if name in short else 'ok'}"
        print(f"{name:48} {shown:>14}{verdict}")
    return 1 if short else 0


def _meets(value: Any, bound: float, direction: Direction) -> bool:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return value <= bound if direction == "max" else value >= bound

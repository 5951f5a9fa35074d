"""Charts of a report as SVG text: intervals, curves, histograms, bars. Pure functions; the page owns the colours.

A chart scales with its box (``viewBox``), names every value in a ``<title>``, and escapes whatever text it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH = 560
_ROW = 26
_NAMES = 160  # to the left of a scale, for names of 22 letters
_LINE = 15  # between two labels, so that neither touches the other
_TICK = 34  # between two names below an axis


def interval_chart(rows: Sequence[tuple[str, float, float, float, str]]) -> str:
    """A dot with its interval per row, on a scale from 0 to 1 at least.

    Args:
        rows: name, mean, low, high, and what to write beside it.
    """
    finite = [value for _, mean, low, high, _ in rows for value in (mean, low, high) if math.isfinite(value)]
    least, most = min([0.0, *finite]), max([1.0, *finite])
    left, right = _NAMES, 150
    span = _WIDTH - left - right

    def x(value: float) -> float:
        bounded = min(max(value, least), most)  # an infinite interval runs over the whole scale
        return left + span * (bounded - least) / (most - least)

    height = _ROW * len(rows) + 24
    parts: list[str] = []
    for tick in range(5):
        value = least + (most - least) * tick / 4
        parts.append(_line(x(value), 4, x(value), height - 20, "grid"))
        parts.append(_text(x(value), height - 6, f"{value:.2g}", "tick", "middle"))
    for i, (name, mean, low, high, note) in enumerate(rows):
        y = _ROW * i + _ROW / 2 + 4
        parts.append(_text(left - 10, y + 4, _short(name, 22), "label", "end"))
        if math.isfinite(mean):
            title = f"<title>{escape(name)}: {mean:.3f}, 95 % {low:.3f} to {high:.3f}</title>"
            bar = _rect("range", x(low), y - 4, max(1.0, x(high) - x(low)), 8, 4)
            parts.append(f'<g>{title}{bar}<circle class="dot" cx="{x(mean):.1f}" cy="{y}" r="5"/></g>')
        parts.append(_text(_WIDTH - right + 12, y + 4, note, "value", "start"))
    return _svg(height, parts, "success by family with 95 % intervals")


def curve_chart(series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Lines over k on a logarithmic axis, from 0 to 1; points that do not exist (NaN) are left out.

    Names stand in a column to the right, each as near to its curve's end as the others allow, and a thin line leads to
    one that had to move. A curve on top of another hides neither: the later one is dashed, on smaller points.
    """
    left, right, top, bottom, height = 44, 90, 12, 30, 220
    ks = sorted({k for points in series.values() for k, _ in points})
    reach = math.log2(max(ks)) or 1.0

    def at(k: int, value: float) -> tuple[float, float]:
        across = left + (_WIDTH - left - right) * math.log2(k) / reach
        return across, top + (height - top - bottom) * (1 - value)

    names = list(series)
    parts: list[str] = []
    for tick in range(5):
        _, y = at(1, tick / 4)
        parts += [_line(left, y, _WIDTH - right, y, "grid"), _text(left - 8, y + 4, f"{tick / 4:.2g}", "tick", "end")]
    beyond = math.inf
    for k in reversed(ks):
        if beyond - at(k, 0)[0] >= _TICK:
            beyond = at(k, 0)[0]
            parts.append(_text(beyond, height - 8, f"k={k}", "tick", "middle"))
    ends: dict[int, tuple[float, float]] = {}
    for i, points in enumerate(series.values()):
        known = [(k, value) for k, value in points if math.isfinite(value)]
        if not known:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in known))
        parts.append(f'<polyline class="curve s{i}" points="{path}"/>')
        for k, value in known:
            x, y = at(k, value)
            title = f"<title>{escape(names[i])} at k={k}: {value:.3f}</title>"
            radius = max(2.0, 5 - 2 * i)
            parts.append(f'<circle class="point s{i}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{title}</circle>')
        ends[i] = at(*known[-1])
    places = spread([y for _, y in ends.values()], _LINE, top, height - bottom)
    column = _WIDTH - right + 24
    for (i, (x, y)), place in zip(ends.items(), places, strict=True):
        if abs(place - y) > 1 or x < _WIDTH - right:
            parts.append(_line(x + 7, y, column - 4, place, f"leader s{i}"))
        parts.append(_text(column, place + 4, _short(names[i], 10), f"label s{i}", "start"))
    return _svg(height, parts, "pass@k and pass^k")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in ``[low, high]``, ``gap`` apart (nearer where they would not fit), in the order of ``wanted``.

    Those that would stand nearer are moved apart around their common middle; the others stay where they are wanted.
    """
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    blocks: list[tuple[float, list[int]]] = []  # where a block's first one stands, and who is in it
    for i in order:
        members = [i]
        while True:
            middle = sum(wanted[m] - gap * rank for rank, m in enumerate(members)) / len(members)
            first = min(max(middle, low), high - gap * (len(members) - 1))
            if not blocks or blocks[-1][0] + gap * len(blocks[-1][1]) <= first + 1e-9:
                break
            members = blocks.pop()[1] + members
        blocks.append((first, members))
    return [place for _, place in sorted((m, first + gap * r) for first, own in blocks for r, m in enumerate(own))]


def histogram(values: Sequence[float], unit: str, *, bins: int = 16) -> str:
    """How often values fall into equal bins; whole numbers get a bin each where they fit."""
    left, right, top, bottom, height = 10, 10, 10, 40, 156
    if not values:
        return ""
    low, high = min(values), max(values)
    whole = all(float(value).is_integer() for value in values)
    if whole and high - low < bins:
        edges = [low - 0.5 + i for i in range(int(high - low) + 2)]
        names = [f"{low + i:g}" for i in range(len(edges) - 1)]
    else:
        step = (high - low) / bins or 1.0
        edges = [low + step * i for i in range(bins + 1)]
        names = [f"{edge:.3g} to {edge + step:.3g}" for edge in edges[:-1]]
    counts = [0] * (len(edges) - 1)
    for value in values:
        place = int((value - edges[0]) / (edges[1] - edges[0]))
        counts[min(place, len(counts) - 1)] += 1
    width = min(60.0, (_WIDTH - left - right) / len(counts))
    most = max(counts)
    parts: list[str] = []
    for i, count in enumerate(counts):
        tall = (height - top - bottom) * count / most
        x, y = left + i * width, height - bottom - tall
        parts.append(_rect("bar", x + 1, y, width - 2, tall, 0, f"{names[i]} {unit}: {count} attempts"))
    end = left + width * len(counts)
    parts.append(_line(left, height - bottom, end, height - bottom, "axis"))
    parts.append(_text(left, height - 22, f"{low:.3g}", "tick", "start"))
    if high > low:
        parts.append(_text(end, height - 22, f"{high:.3g}", "tick", "end"))
    parts.append(_text(left, height - 7, _short(unit), "tick", "start"))
    return _svg(height, parts, f"distribution of {unit}")


def bar_chart(counts: Mapping[str, int], kind: str) -> str:
    """A bar per name, longest first; ``kind`` is a class of the page's."""
    rows = sorted(counts.items(), key=lambda item: -item[1])
    most, left, right = max((count for _, count in rows), default=1), _NAMES, 60
    parts: list[str] = []
    for i, (name, count) in enumerate(rows):
        y, long = _ROW * i + 5, (_WIDTH - left - right) * count / most
        parts.append(_text(left - 10, y + 13, _short(name, 22), "label", "end"))
        parts.append(_rect(kind, left, y, max(2.0, long), _ROW - 10, 3))
        parts.append(_text(left + long + 8, y + 13, str(count), "value", "start"))
    return _svg(_ROW * len(rows) + 6, parts, "counts")


def _short(text: str, limit: int = 60) -> str:
    """A text for a label, cut where it is too long; not yet escaped."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    box = f'viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(label)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: float, title: str = "") -> str:
    shape = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
    return f"<rect {shape}><title>{escape(title)}</title></rect>" if title else f"<rect {shape}/>"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

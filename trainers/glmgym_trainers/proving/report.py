"""What an experiment leaves to read: ``report.md``, ``plot.png`` and ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from glmgym_trainers.proving.experiment import Claim, Experiment
from glmgym_trainers.proving.plot import draw
from glmgym_trainers.proving.runner import Results
from glmgym_trainers.proving.statistics import Interval, Verdict, interval


@dataclass(frozen=True, slots=True)
class Judgement:
    """A claim against the measured numbers."""

    claim: Claim
    found: Interval
    holds: Verdict


def judge(experiment: Experiment, results: Results) -> list[Judgement]:
    """Every claim of the experiment, in its order."""
    seeds = list(results.cells.values())
    return [Judgement(claim, *claim.judge(seeds)) for claim in experiment.claims]


def write_report(experiment: Experiment, results: Results, out: Path, *, quick: bool) -> list[Judgement]:
    """Write the three files and return the judgements."""
    judgements = judge(experiment, results)
    out.mkdir(parents=True, exist_ok=True)
    draw(experiment, results, out / "plot.png")
    (out / "report.md").write_text(_page(experiment, results, judgements, quick=quick), encoding="utf-8")
    (out / "results.json").write_text(_json(experiment, results, judgements, quick=quick), encoding="utf-8")
    return judgements


def summary_table(experiment: Experiment, results: Results) -> list[list[str]]:
    """Heading and one row per arm: mean and half-width of the 95 % interval over seeds of each metric."""
    heading = ["arm", *experiment.metrics.values(), "CPU s"]
    rows = [heading]
    for arm in experiment.arms:
        records = [cell[arm.name] for cell in results.cells.values()]
        cells = [_cell([r.metrics[name] for r in records if name in r.metrics]) for name in experiment.metrics]
        rows.append([f"`{arm.name}`", *cells, f"{sum(r.cpu_s for r in records) / len(records):.0f}"])
    return rows


def _page(experiment: Experiment, results: Results, judgements: Sequence[Judgement], *, quick: bool) -> str:
    count = len(results.cells)
    cpu = sum(record.cpu_s for cell in results.cells.values() for record in cell.values())
    gates = [each for each in judgements if each.claim.gate]
    lines = [f"# {experiment.name}", "", f"**Claim.** {experiment.claim}", "", f"**Verdict.** {_verdict(judgements)}"]
    if quick:
        lines += ["", "A quick run: it shows that everything works. Its numbers decide nothing."]
    lines += ["", "## Setting", "", experiment.setting, "", "| arm | what sets it apart |", "|---|---|"]
    lines += [f"| `{arm.name}` | {arm.does} |" for arm in experiment.arms]
    lines += ["", "## Result", "", "![curves](plot.png)", ""]
    lines += [f"Mean over {count} paired seeds, ± half of the 95 % interval.", ""]
    lines += _markdown(summary_table(experiment, results))
    lines += ["", "## Does it hold?", ""]
    lines += [
        "A claim holds if the 95 % interval (Student's t over paired seeds) lies above its border"
        + (". Gates are marked." if gates else "; none of them is a gate."),
        "",
    ]
    lines += _markdown(
        [["claim", "measured", "mean", "95 % interval", "border", "holds"], *map(_claim_row, judgements)]
    )
    lines += ["", "## What was tried", "", *(f"- {line}" for line in experiment.tried)]
    settings = ", ".join(f"`{name}={value}`" for name, value in results.settings.model_dump().items())
    lines += ["", "## Run", "", f"Seeds {', '.join(map(str, results.cells))}; {cpu:.0f} CPU s; code and settings "]
    lines[-1] += f"`{results.key}`. Settings: {settings}. Again: `glmgym prove {experiment.name}`."
    return "\n".join(lines) + "\n"


def _verdict(judgements: Sequence[Judgement]) -> str:
    gates = [each for each in judgements if each.claim.gate]
    held = sum(each.holds is Verdict.YES for each in gates)
    others = [each for each in judgements if not each.claim.gate]
    parts = []
    if gates:
        parts.append(f"{held} of {len(gates)} gates hold")
    for kind, words in (
        (Verdict.YES, "hold"), (Verdict.NO, "do not hold"), (Verdict.INCONCLUSIVE, "are inconclusive"),
    ):  # fmt: skip
        number = sum(each.holds is kind for each in others)
        if number:
            parts.append(f"{number} of {len(others)} other claims {words}")
    return "; ".join(parts) + "."


def _claim_row(judged: Judgement) -> list[str]:
    claim, found = judged.claim, judged.found
    says = f"**gate** {claim.says}" if claim.gate else claim.says
    span = f"{found.low:+.3f} to {found.high:+.3f}"
    return [says, claim.measure, f"{found.mean:+.3f}", span, f"{claim.above:g}", f"**{judged.holds}**"]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = interval(values)
    digits = 3 if abs(found.mean) < 10 else 0
    return f"{found.mean:.{digits}f}" + (f" ± {found.half:.{digits}f}" if found.count > 1 else "")


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    heading, *body = rows
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *body)]


def _json(experiment: Experiment, results: Results, judgements: Sequence[Judgement], *, quick: bool) -> str:
    plain = {
        "experiment": experiment.name,
        "key": results.key,
        "quick": quick,
        "settings": results.settings.model_dump(mode="json"),
        "claims": [
            {
                "says": each.claim.says,
                "measure": each.claim.measure,
                "per_seed": [each.claim.value(records) for records in results.cells.values()],
                "mean": each.found.mean,
                "interval": [each.found.low, each.found.high] if each.found.count > 1 else None,
                "border": each.claim.above,
                "gate": each.claim.gate,
                "holds": each.holds,
            }
            for each in judgements
        ],
        "cells": {
            str(seed): {arm: asdict(record) for arm, record in records.items()}
            for seed, records in results.cells.items()
        },
    }
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"

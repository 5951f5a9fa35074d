"""``glmgym eval``: one policy on one suite, as a table, a JSON summary and a store of its trajectories."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from glmgym.chat import Tokenizer
from glmgym.errors import ConfigError
from glmgym.evaluate import EvalReport, evaluate
from glmgym.registry import EnvSpec, load_component
from glmgym.rollout import House
from glmgym.store import TrajectoryStore


async def run_evaluation(
    console: Console,
    policy: str,
    spec: EnvSpec,
    *,
    tasks: int,
    attempts: int,
    out: Path | None,
    backend: str,
    seed: int,
) -> None:
    """Evaluate, show, and write ``summary.json`` and the trajectories when ``out`` is given.

    Raises:
        ConfigError: no such policy or backend, or ``out`` already holds an evaluation.
    """
    if out is not None and (out / "summary.json").exists():
        raise ConfigError(f"{out} already holds an evaluation; give another --out")
    tasks = min(tasks, spec.tasks.size("heldout"))
    engine, chat = load_component("engines", "torch")(policy)
    provider = None
    try:
        if spec.box is not None:
            provider = load_component("sandboxes", backend)()
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(f"{spec.id}", total=tasks * attempts)
            report = await evaluate(
                spec,
                House(engine, chat, provider),
                num_tasks=tasks,
                attempts=attempts,
                seed=seed,
                on_finished=lambda trajectory: progress.advance(bar),
            )
    finally:
        await engine.close()
        if provider is not None:
            await provider.close()
    console.print(_table(report))
    if report.failures:
        console.print(f"failures, not in the mean: {report.failures}", style="yellow")
    if out is not None:
        await asyncio.to_thread(_write, out, policy, chat.tokenizer, report)
        console.print(f"Written to {out}. Look at it: glmgym inspect {out}", highlight=False)


def _table(report: EvalReport) -> Table:
    table = Table("family", "success", "95 % interval", "attempts", box=None, header_style="bold")
    for name, row in [*report.families.items(), ("all", report.overall)]:
        style = "bold" if name == "all" else ""
        table.add_row(name or "-", f"{row.mean:.3f}", f"{row.low:.3f} to {row.high:.3f}", str(row.count), style=style)
    return table


def _write(out: Path, policy: str, tokenizer: Tokenizer, report: EvalReport) -> None:
    (out / "trajectories").mkdir(parents=True, exist_ok=True)
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite") as store:
        for trajectory in report.trajectories:
            store.add(trajectory)
    tokenizer.save(out)
    (out / "summary.json").write_text(json.dumps({"policy": policy, **report.summary()}, indent=2) + "\n")

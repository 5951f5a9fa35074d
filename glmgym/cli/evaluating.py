"""``glmgym eval``: one policy on one suite, as a table, a JSON summary and a store of its trajectories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
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
from glmgym.trajectory import Trajectory


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
    """Evaluate, show, and write the trajectories as they finish and then ``summary.json`` when ``out`` is given.

    Raises:
        ConfigError: no such policy or backend, or ``out`` already holds a run or an evaluation.
        StoreError: the trajectories cannot be written.
    """
    if out is not None and (out / "trajectories").exists():
        raise ConfigError(f"{out} already holds a run or an evaluation; give another --out")
    tasks = min(tasks, spec.tasks.size("heldout"))
    engine, chat = load_component("engines", "torch")(policy)
    provider = None
    try:
        if spec.box is not None:
            provider = load_component("sandboxes", backend)()
        with (
            _open_store(out, chat.tokenizer) as store,
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            bar = progress.add_task(spec.id, total=tasks * attempts)
            kept: list[asyncio.Task[str]] = []

            def on_finished(trajectory: Trajectory) -> None:
                progress.advance(bar)
                if store is not None:
                    kept.append(asyncio.create_task(asyncio.to_thread(store.add, trajectory)))

            house = House(engine, chat, provider)
            try:
                report = await evaluate(
                    spec, house, num_tasks=tasks, attempts=attempts, seed=seed, on_finished=on_finished
                )
            except asyncio.CancelledError:
                where = f"; {len(kept)} of {tasks * attempts} attempts are kept in {out}" if out is not None else ""
                console.print(f"stopped on request{where}", markup=False, highlight=False, soft_wrap=True)
                raise
            finally:
                await asyncio.gather(*kept)  # an attempt that finished is not lost, whatever ends the evaluation
    finally:
        await engine.close()
        if provider is not None:
            await provider.close()
    console.print(_table(report))
    if report.failures:
        console.print(f"failures, not in the mean: {report.failures}", style="yellow")
    if out is not None:
        summary = json.dumps({"policy": policy, **report.summary()}, indent=2) + "\n"
        (out / "summary.json").write_text(summary, encoding="utf-8")
        console.print(f"Written to {out}. Look at it: glmgym inspect {out}", highlight=False, soft_wrap=True)


@contextmanager
def _open_store(out: Path | None, tokenizer: Tokenizer) -> Iterator[TrajectoryStore | None]:
    """A store in ``out``, beside it the tokenizer that turns its ids into text."""
    if out is None:
        yield None
        return
    (out / "trajectories").mkdir(parents=True)
    tokenizer.save(out)
    with TrajectoryStore.open(out / "trajectories" / "store.sqlite") as store:
        yield store


def _table(report: EvalReport) -> Table:
    table = Table("family", "success", "95 % interval", "attempts", box=None, header_style="bold")
    for name, row in [*report.families.items(), ("all", report.overall)]:
        style = "bold" if name == "all" else ""
        table.add_row(name or "-", f"{row.mean:.3f}", f"{row.low:.3f} to {row.high:.3f}", str(row.count), style=style)
    return table

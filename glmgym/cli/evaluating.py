"""``glmgym eval``: one policy on one suite, as a table, a JSON summary and a store of its trajectories."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from glmgym.chat import Tokenizer
from glmgym.compaction import CompactionSettings
from glmgym.engine import SamplingSettings
from glmgym.errors import ConfigError
from glmgym.evaluate import EvalReport, evaluate
from glmgym.registry import EnvSpec, load_component
from glmgym.rollout import Budget, House
from glmgym.settings import parse_settings
from glmgym.store import TrajectoryStore
from glmgym.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Terms:
    """What a policy may spend and how it samples: part of what its score means, as much as its weights."""

    budget: Budget = field(default_factory=Budget)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    compaction: CompactionSettings | None = None
    context_length: int | None = None  # None: the engine's own

    def plain(self) -> dict[str, Any]:
        """Plain data for JSON, under the names of a recipe's tables."""
        compaction = self.compaction.model_dump() if self.compaction is not None else None
        return {
            "rollout": self.budget.model_dump(),
            "sampling": self.sampling.model_dump(),
            "compaction": compaction,
            "context_length": self.context_length,
        }


def read_terms(source: Path) -> Terms:
    """The terms of a recipe file, or of a run by its directory; the rest of the recipe is left alone.

    Raises:
        ConfigError: no such file, not TOML, a recipe of stages, or a value that cannot work.
    """
    path = source / "config.toml" if source.is_dir() else source
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; give a recipe file or the directory of a run"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if "stage" in data:
        raise ConfigError(f"{path} is a recipe of stages: give the run directory of one of them")
    for name in ("rollout", "sampling", "compaction", "policy"):
        if not isinstance(data.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} = {data[name]!r}: must be a table")
    compaction = data.get("compaction")
    return Terms(
        parse_settings(Budget, data.get("rollout", {}), where=f"{path} [rollout]"),
        parse_settings(SamplingSettings, data.get("sampling", {}), where=f"{path} [sampling]"),
        None if compaction is None else parse_settings(CompactionSettings, compaction, where=f"{path} [compaction]"),
        data.get("policy", {}).get("context_length"),
    )


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
    terms: Terms,
) -> None:
    """Evaluate, show, and write the trajectories as they finish and then ``summary.json`` when ``out`` is given.

    Raises:
        ConfigError: no such policy or backend, or ``out`` already holds a run or an evaluation.
        StoreError: the trajectories cannot be written.
    """
    if out is not None and (out / "trajectories").exists():
        raise ConfigError(f"{out} already holds a run or an evaluation; give another --out")
    tasks = min(tasks, spec.tasks.size("heldout"))
    options = {} if terms.context_length is None else {"context_length": terms.context_length}
    engine, chat = load_component("engines", "torch")(policy, **options)
    provider = None
    try:
        if spec.box is not None:
            provider = load_component("sandboxes", backend)()
        house = House(engine, chat, provider, terms.budget, terms.sampling, terms.compaction)
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
    run = _run_of(policy)
    if terms.compaction is None and run is not None and read_terms(run).compaction is not None:
        hint = f"this policy was trained with compaction and evaluated without; alike: --like {run}"
        console.print(hint, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if report.failures:
        console.print(f"failures, not in the mean: {report.failures}", style="yellow")
    if out is not None:
        summary = json.dumps({"policy": policy, **report.summary(), **terms.plain()}, indent=2) + "\n"
        (out / "summary.json").write_text(summary, encoding="utf-8")
        console.print(f"Written to {out}. Look at it: glmgym inspect {out}", highlight=False, soft_wrap=True)


def _run_of(policy: str) -> Path | None:
    """The run that a checkpoint belongs to; None for a policy from elsewhere."""
    path = Path(policy).resolve()
    is_checkpoint = path.parent.parent.name == "checkpoints"
    return path.parents[2] if is_checkpoint and (path.parents[2] / "config.toml").is_file() else None


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

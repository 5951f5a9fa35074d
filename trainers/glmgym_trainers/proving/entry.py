"""What the command line finds by name: the experiments' claims, and how to run one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym.errors import UnknownName
from glmgym_trainers.proving.cache import default_root
from glmgym_trainers.proving.experiments import EXPERIMENTS
from glmgym_trainers.proving.report import Judgement, summary_table, write_report
from glmgym_trainers.proving.runner import OnProgress, run_experiment
from glmgym_trainers.proving.statistics import Verdict


@dataclass(frozen=True, slots=True)
class Proven:
    """What ``prove`` found and where it wrote it."""

    table: Sequence[Sequence[str]]  # heading and a row per arm
    judgements: Sequence[Judgement]
    directory: Path

    @property
    def passed(self) -> bool:
        """Whether every gate holds."""
        return all(each.holds is Verdict.YES for each in self.judgements if each.claim.gate)


def prove(
    name: str,
    *,
    seeds: int,
    quick: bool,
    out: Path,
    overrides: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    processes: int = 2,
    on_progress: OnProgress = lambda done, total: None,
) -> Proven:
    """Run an experiment on seeds 0, 1, ... and write its report, table and plot below ``out``.

    Args:
        quick: the few steps that the experiment names for a trial.
        overrides: settings of the experiment, over those of ``quick``.
        cache: where warm starts are kept; see ``default_root``.

    Raises:
        UnknownName: no such experiment.
        ConfigError: an override is unknown or wrong.
        Invalid: a run broke a condition of the experiment.
    """
    if name not in EXPERIMENTS:
        raise UnknownName("experiment", name, EXPERIMENTS)
    experiment = EXPERIMENTS[name]
    directory = out / name
    results = run_experiment(
        experiment,
        {**(experiment.quick if quick else {}), **(overrides or {})},
        seeds=range(seeds),
        out=directory,
        cache=cache or default_root(),
        processes=processes,
        on_progress=on_progress,
    )
    judgements = write_report(experiment, results, directory, quick=quick)
    return Proven(summary_table(experiment, results), judgements, directory)


def claims() -> dict[str, str]:
    """Every experiment's claim by name, those with gates first."""
    return {name: experiment.claim for name, experiment in EXPERIMENTS.items()}


PROVE = (prove, claims)

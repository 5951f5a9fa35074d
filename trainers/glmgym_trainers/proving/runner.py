"""Runs an experiment: seeds in a few processes, one file per finished arm and seed, and the report at the end.

A cell is one arm on one seed. Its file carries the digest of settings and code, so an interrupted run goes on where it
stopped and a changed one starts anew.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmgym.settings import Settings, parse_settings
from glmgym_trainers import credit, distillation, learner, losses, reductions
from glmgym_trainers.proving import episode, gpt, lockstep, practice, warm, words
from glmgym_trainers.proving.cache import Cache, digest
from glmgym_trainers.proving.experiment import Experiment, Record, Records

SHARED = (credit, distillation, learner, losses, reductions, episode, gpt, lockstep, practice, warm, words)
POLL_S = 0.5

OnProgress = Callable[[int, int], None]  # cells done, cells in all


@dataclass(frozen=True, slots=True)
class Results:
    """All cells of an experiment, by seed and arm."""

    key: str
    settings: Settings
    cells: Mapping[int, Records]


def run_experiment(
    experiment: Experiment,
    overrides: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    out: Path,
    cache: Path,
    processes: int = 2,
    on_progress: OnProgress = lambda done, total: None,
) -> Results:
    """Run what is missing and read all of it back.

    Args:
        overrides: settings other than the experiment's own.
        out: directory of the experiment; cells go to ``cells/`` in it.
        processes: that seeds are shared out over; 1 runs everything in this one.

    Raises:
        ConfigError: an override is unknown or wrong.
        Invalid: a run broke a condition of the experiment.
    """
    settings = parse_settings(experiment.settings, overrides, where=f"settings of {experiment.name}")
    key = digest(experiment.name, settings, *SHARED, *experiment.modules)
    cells = Cells(out / "cells", key)
    work = {seed: [arm.name for arm in experiment.arms if cells.read(arm.name, seed) is None] for seed in seeds}
    missing = [(seed, arms) for seed, arms in work.items() if arms]
    total = len(seeds) * len(experiment.arms)

    def report() -> None:
        done = sum(cells.path(arm.name, seed).exists() for seed in seeds for arm in experiment.arms)
        on_progress(min(done, total), total)

    report()
    if missing and processes == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            experiment.prepare(settings, Cache(cache))
            for seed, arms in missing:
                run_seed(experiment, settings, arms, seed, Cache(cache), cells, report)
        finally:
            torch.set_num_threads(threads)
    elif missing:
        _in_processes(experiment.name, settings, missing, cells, cache, processes, report)
    return Results(key, settings, {seed: _all(experiment, cells, seed) for seed in seeds})


def run_seed(
    experiment: Experiment,
    settings: Settings,
    arms: Sequence[str],
    seed: int,
    cache: Cache,
    cells: Cells,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Run arms of one seed one after the other, and write each as it ends."""
    for arm in arms:
        start = time.process_time()
        record = experiment.run(settings, arm, seed, cache)
        cells.write(arm, seed, Record(record.metrics, record.curve, time.process_time() - start))
        report()


class Cells:
    """The files of finished cells under one key; files under another key count as missing and are removed."""

    def __init__(self, directory: Path, key: str) -> None:
        self._directory = directory
        self._key = key

    def path(self, arm: str, seed: int) -> Path:
        return self._directory / f"{arm}-{seed}.json"

    def read(self, arm: str, seed: int) -> Record | None:
        path = self.path(arm, seed)
        if not path.exists():
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] != self._key:
            path.unlink()
            return None
        return Record(found["metrics"], found["curve"], found["cpu_s"])

    def write(self, arm: str, seed: int, record: Record) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        half = self.path(arm, seed).with_suffix(".half")
        text = {"key": self._key, "metrics": record.metrics, "curve": list(record.curve), "cpu_s": record.cpu_s}
        half.write_text(json.dumps(text, allow_nan=False) + "\n", encoding="utf-8")
        half.replace(self.path(arm, seed))


def _in_processes(
    name: str,
    settings: Settings,
    missing: Sequence[tuple[int, list[str]]],
    cells: Cells,
    cache: Path,
    processes: int,
    report: Callable[[], None],
) -> None:
    """Share the seeds out. The first error of a seed ends the run; what was finished stays."""
    # Not fork: the parent has torch's threads and whatever else imported it.
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_one_thread)
    try:
        pool.submit(_prepare, name, settings, cache).result()
        waiting: set[Future[None]] = {
            pool.submit(_run_seed, name, settings, arms, seed, cache, cells) for seed, arms in missing
        }
        while waiting:
            done, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_EXCEPTION)
            report()
            for future in done:
                future.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()  # a seed takes minutes; nobody who stopped the run waits for that
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _prepare(name: str, settings: Settings, cache: Path) -> None:
    _experiment(name).prepare(settings, Cache(cache))


def _run_seed(name: str, settings: Settings, arms: list[str], seed: int, cache: Path, cells: Cells) -> None:
    run_seed(_experiment(name), settings, arms, seed, Cache(cache), cells)


def _experiment(name: str) -> Experiment:
    from glmgym_trainers.proving.experiments import EXPERIMENTS  # each of them imports this module's neighbours

    return EXPERIMENTS[name]


def _all(experiment: Experiment, cells: Cells, seed: int) -> Records:
    found = {arm.name: cells.read(arm.name, seed) for arm in experiment.arms}
    return {arm: record for arm, record in found.items() if record is not None}

"""Score a policy on a suite: every task k times, failures apart, with an interval one can trust.

Owned here: what is counted. A failed attempt has no score; it is listed, never averaged in as 0.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glmgym.env import Split
from glmgym.errors import ConfigError
from glmgym.registry import EnvSpec
from glmgym.rollout import House, Job, job_seed, run_trajectory
from glmgym.trajectory import Trajectory

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; ``count`` attempts over ``tasks`` tasks."""

    mean: float
    low: float
    high: float
    count: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The result of one evaluation."""

    env_id: str
    split: Split
    attempts_per_task: int
    overall: Estimate
    families: dict[str, Estimate]
    environments: dict[str, Estimate]  # of a mixture: each for itself
    failures: dict[str, int]  # origin -> attempts
    stops: dict[str, int]
    trajectories: tuple[Trajectory, ...]

    def summary(self) -> dict[str, object]:
        """Plain data for JSON, without the trajectories."""

        def plain(estimate: Estimate) -> dict[str, float | None]:
            return {
                "mean": _json_number(estimate.mean),
                "low": _json_number(estimate.low),
                "high": _json_number(estimate.high),
                "attempts": estimate.count,
                "tasks": estimate.tasks,
            }

        return {
            "environment": self.env_id,
            "split": self.split,
            "attempts_per_task": self.attempts_per_task,
            "overall": plain(self.overall),
            "environments": {name: plain(estimate) for name, estimate in self.environments.items()},
            "families": {name: plain(estimate) for name, estimate in self.families.items()},
            "failures": self.failures,
            "stops": self.stops,
        }


async def evaluate(
    spec: EnvSpec,
    house: House,
    *,
    num_tasks: int,
    attempts: int = 1,
    split: Split = "heldout",
    seed: int = 0,
    max_live: int = 48,
    on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
) -> EvalReport:
    """Play ``attempts`` episodes on each of the first ``num_tasks`` tasks of a split.

    Raises:
        ConfigError: the split has fewer tasks.
        ExceptionGroup: a programming mistake; failures at boundaries are counted in the report instead.
    """
    if num_tasks > spec.tasks.size(split):
        raise ConfigError(f"{spec.id} has {spec.tasks.size(split)} {split} tasks; {num_tasks} were asked for")
    slots = asyncio.Semaphore(max_live)

    async def play(index: int, attempt: int) -> Trajectory:
        async with slots:
            task = await asyncio.to_thread(spec.tasks.task, split, index)
            name = f"eval-{split}-{index}-{attempt}"
            trajectory = await run_trajectory(Job(name, task, spec, job_seed(seed, name), task.id), house)
        on_finished(trajectory)
        return trajectory

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(play(i, a)) for i in range(num_tasks) for a in range(attempts)]
    return report([job.result() for job in jobs], spec.id, split, attempts)


def share_out(num_tasks: int, specs: Sequence[EnvSpec], split: Split = "heldout") -> list[int]:
    """How many tasks each environment of a mixture gets: the same for all, or as many as its split has."""
    shares = [num_tasks // len(specs) + (k < num_tasks % len(specs)) for k in range(len(specs))]
    return [min(share, spec.tasks.size(split)) for share, spec in zip(shares, specs, strict=True)]


async def evaluate_mixture(
    specs: Sequence[EnvSpec],
    house: House,
    *,
    num_tasks: int,
    seed: int = 0,
    max_live: int = 48,
    on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
) -> EvalReport:
    """One attempt at each of ``num_tasks`` held-out tasks, shared out over the environments, in one report.

    Raises:
        ExceptionGroup: a programming mistake; failures at boundaries are counted in the report instead.
    """
    trajectories: list[Trajectory] = []
    for spec, share in zip(specs, share_out(num_tasks, specs), strict=True):
        found = await evaluate(spec, house, num_tasks=share, seed=seed, max_live=max_live, on_finished=on_finished)
        trajectories += found.trajectories
    return report(trajectories, " + ".join(spec.id for spec in specs), "heldout", 1)


def report(trajectories: Sequence[Trajectory], env_id: str, split: Split, attempts: int) -> EvalReport:
    """Count a finished evaluation."""
    graded = [t for t in trajectories if t.outcome.is_valid]
    families = sorted({t.family for t in graded})
    environments = list(dict.fromkeys(t.env_id for t in graded))
    return EvalReport(
        env_id=env_id,
        split=split,
        attempts_per_task=attempts,
        overall=estimate(graded),
        families={name: estimate([t for t in graded if t.family == name]) for name in families},
        environments={name: estimate([t for t in graded if t.env_id == name]) for name in environments},
        failures=dict(Counter(t.outcome.failure.origin for t in trajectories if t.outcome.failure is not None)),
        stops=dict(Counter(str(t.outcome.stop) for t in trajectories)),
        trajectories=tuple(trajectories),
    )


def estimate(trajectories: Sequence[Trajectory]) -> Estimate:
    """Mean outcome with a 95 % interval; shaping rewards are trained, but are no part of a score.

    Tasks are the independent units. Where each was always or never solved the interval is Wilson's, which stays honest
    at 0 and 1; otherwise it is normal over task means.
    """
    by_task: dict[str, list[float]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task_id, []).append(trajectory.outcome.result())
    means = np.array([np.mean(values) for values in by_task.values()])
    n, count = len(means), len(trajectories)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, 0)
    mean = float(means.mean())
    if set(means.tolist()) <= {0.0, 1.0}:
        return Estimate(mean, *wilson(mean, n), count, n)
    half = Z95 * float(means.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Estimate(mean, mean - half, mean + half, count, n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a binomial share over ``n`` trials (Wilson 1927)."""
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None

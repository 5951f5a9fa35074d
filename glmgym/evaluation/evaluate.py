"""Score a policy on a suite: every task k times, failures apart, with an interval one can trust.

Owned here: which attempts are played, and what is counted. A failed attempt has no score; it is listed, never averaged
in as 0. A failure that may pass can be tried again: the attempt that counts is then the first that did not fail.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from glmgym.env import Split, Task
from glmgym.errors import ConfigError
from glmgym.evaluation.attempt import Attempt, attempt_key
from glmgym.evaluation.intervals import Estimate, estimate, json_number
from glmgym.evaluation.passk import SOLVED, mean_over_tasks, pass_at_k, pass_hat_k
from glmgym.evaluation.player import Player
from glmgym.registry import EnvSpec
from glmgym.rollout import House, Job, job_seed, run_trajectory
from glmgym.trajectory import Failure, Outcome, Trajectory


class Graded(Protocol):
    """What a report counts: a ``Trajectory`` or an ``Attempt``."""

    @property
    def task_id(self) -> str: ...

    @property
    def env_id(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def outcome(self) -> Outcome: ...


G = TypeVar("G", bound=Graded)


@dataclass(frozen=True, slots=True)
class Passes:
    """pass@k and pass^k by k: the mean over tasks, and how many tasks had k attempts that did not fail."""

    pass_at: dict[int, tuple[float, int]]
    pass_hat: dict[int, tuple[float, int]]

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""

        def by_k(found: Mapping[int, tuple[float, int]]) -> dict[str, object]:
            return {str(k): {"mean": json_number(mean), "tasks": tasks} for k, (mean, tasks) in found.items()}

        return {"pass_at_k": by_k(self.pass_at), "pass_hat_k": by_k(self.pass_hat)}


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The result of one evaluation."""

    env_id: str
    split: Split
    attempts_per_task: int
    overall: Estimate
    families: dict[str, Estimate]
    environments: dict[str, Estimate]  # of a mixture: each for itself
    passes: Passes
    family_passes: dict[str, Passes]
    failures: dict[str, int]  # origin -> attempts
    stops: dict[str, int]

    def summary(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "environment": self.env_id,
            "split": self.split,
            "attempts_per_task": self.attempts_per_task,
            "overall": self.overall.plain(),
            "environments": {name: found.plain() for name, found in self.environments.items()},
            "families": {name: found.plain() for name, found in self.families.items()},
            **self.passes.plain(),
            "failures": self.failures,
            "stops": self.stops,
        }


def report(graded: Sequence[Graded], env_id: str, split: Split, attempts: int) -> EvalReport:
    """Count a finished evaluation. Shaping rewards are trained, but are no part of a score."""
    valid = [each for each in graded if each.outcome.is_valid]
    families = sorted({each.family for each in valid})
    by_family = {name: [each for each in valid if each.family == name] for name in families}
    environments = list(dict.fromkeys(each.env_id for each in valid))
    return EvalReport(
        env_id=env_id,
        split=split,
        attempts_per_task=attempts,
        overall=score(valid),
        families={name: score(own) for name, own in by_family.items()},
        environments={name: score([each for each in valid if each.env_id == name]) for name in environments},
        passes=passes_of(valid, attempts),
        family_passes={name: passes_of(own, attempts) for name, own in by_family.items()},
        failures=dict(Counter(each.outcome.failure.origin for each in graded if each.outcome.failure is not None)),
        stops=dict(Counter(str(each.outcome.stop) for each in graded)),
    )


def score(valid: Sequence[Graded]) -> Estimate:
    """Mean outcome with its 95 % interval over tasks; failed attempts must be left out before."""
    return estimate(list(outcomes_by_task(valid).values()))


def passes_of(valid: Sequence[Graded], attempts: int) -> Passes:
    """pass@k and pass^k for the k of ``which_k``."""
    counts = [(len(values), sum(v >= SOLVED for v in values)) for values in outcomes_by_task(valid).values()]
    ks = which_k(attempts)
    return Passes(
        {k: mean_over_tasks(counts, k, pass_at_k) for k in ks}, {k: mean_over_tasks(counts, k, pass_hat_k) for k in ks}
    )


def outcomes_by_task(valid: Sequence[Graded]) -> dict[str, list[float]]:
    """The outcomes of each task's attempts, tasks in the order in which they appear."""
    found: dict[str, list[float]] = {}
    for each in valid:
        found.setdefault(each.task_id, []).append(each.outcome.result())
    return found


def which_k(attempts: int) -> list[int]:
    """The k of a table: powers of two up to the number of attempts, and that number."""
    powers = [2**i for i in range(attempts.bit_length()) if 2**i < attempts]
    return [*powers, attempts]


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
) -> tuple[EvalReport, list[Trajectory]]:
    """Play ``attempts`` episodes on each of the first ``num_tasks`` tasks of a split.

    Raises:
        ConfigError: the split has fewer tasks.
        ExceptionGroup: a programming mistake; failures at boundaries are counted in the report instead.
    """

    async def play(index: int, number: int) -> Trajectory:
        trajectory = await run_trajectory(await _job(spec, split, index, number, seed), house)
        on_finished(trajectory)
        return trajectory

    played = await _play_all(play, _cells(spec, split, num_tasks, attempts), max_live)
    return report(played, spec.id, split, attempts), played


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
    played: list[Trajectory] = []
    for spec, share in zip(specs, share_out(num_tasks, specs), strict=True):
        options: dict[str, Any] = {"seed": seed, "max_live": max_live, "on_finished": on_finished}
        played += (await evaluate(spec, house, num_tasks=share, **options))[1]
    return report(played, " + ".join(spec.id for spec in specs), "heldout", 1)


def share_out(num_tasks: int, specs: Sequence[EnvSpec], split: Split = "heldout") -> list[int]:
    """How many tasks each environment of a mixture gets: the same for all, or as many as its split has."""
    shares = [num_tasks // len(specs) + (k < num_tasks % len(specs)) for k in range(len(specs))]
    return [min(share, spec.tasks.size(split)) for share, spec in zip(shares, specs, strict=True)]


async def collect_attempts(
    spec: EnvSpec,
    player: Player,
    *,
    terms: Mapping[str, Any],
    num_tasks: int,
    attempts: int,
    split: Split,
    seed: int,
    max_live: int,
    retries: int,
    done: Collection[str],
    on_finished: Callable[[Attempt, Trajectory | None], Awaitable[None]],
) -> None:
    """Play what is not ``done`` yet (by key) and hand each attempt over as it ends, in no particular order.

    Sampling seeds belong to (task, attempt) alone, so a result does not depend on the order or on what was cut. A
    retry has the seed of what it replaces: only the failure is made up for.

    Args:
        terms: of the evaluation, part of every attempt's key.
        retries: how often a failure that may pass is played again.

    Raises:
        ConfigError: the split has fewer tasks.
        ExceptionGroup: a programming mistake; failures at boundaries are attempts that failed.
    """

    async def play(index: int, number: int) -> None:
        job = await _job(spec, split, index, number, seed)
        key = attempt_key(terms, job.task, number)
        if key in done:
            return
        replaced: list[Failure] = []
        while True:
            started, began = datetime.now(UTC), time.monotonic()
            trajectory, transcript = await player.play(job)
            failure = transcript.outcome.failure
            if failure is None or not failure.retryable or len(replaced) >= retries:
                break
            replaced.append(failure)
        attempt = Attempt(
            id=f"{job.task.id}/{number}",
            key=key,
            task_id=job.task.id,
            env_id=spec.id,
            number=number,
            seed=job.seed,
            started_at=started.isoformat(timespec="milliseconds"),
            wall_s=round(time.monotonic() - began, 6),
            transcript=transcript,
            family=job.task.family,
            domain=job.task.domain,
            replaced=tuple(replaced),
        )
        await on_finished(attempt, trajectory)

    await _play_all(play, _cells(spec, split, num_tasks, attempts), max_live)


def tasks_of(spec: EnvSpec, split: Split, num_tasks: int) -> list[Task]:
    """The first ``num_tasks`` tasks of a split."""
    return [spec.tasks.task(split, index) for index in range(num_tasks)]


R = TypeVar("R")


async def _play_all(
    play: Callable[[int, int], Awaitable[R]], cells: Sequence[tuple[int, int]], max_live: int
) -> list[R]:
    slots = asyncio.Semaphore(max_live)

    async def one(index: int, number: int) -> R:
        async with slots:
            return await play(index, number)

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(one(*cell)) for cell in cells]
    return [job.result() for job in jobs]


def _cells(spec: EnvSpec, split: Split, num_tasks: int, attempts: int) -> list[tuple[int, int]]:
    if num_tasks > spec.tasks.size(split):
        raise ConfigError(f"{spec.id} has {spec.tasks.size(split)} {split} tasks; {num_tasks} were asked for")
    return [(index, number) for index in range(num_tasks) for number in range(attempts)]


async def _job(spec: EnvSpec, split: Split, index: int, number: int, seed: int) -> Job:
    task = await asyncio.to_thread(spec.tasks.task, split, index)
    name = f"eval-{split}-{index}-{number}"
    return Job(name, task, spec, job_seed(seed, name), task.id)

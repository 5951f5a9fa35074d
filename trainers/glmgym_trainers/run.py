"""One training run: builds everything a recipe names, then loops take -> learn -> publish -> save -> consume.

Owned here: the order of those five, which is what makes a run resumable. A batch is marked with its step before it is
learned; the checkpoint of a step appears at once (rename); only then are the trajectories consumed. After a kill,
``TrajectoryStore.recover`` compares the marks with the newest checkpoint, so nothing is trained twice.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from glmgym.engine import Weights
from glmgym.errors import GlmgymError
from glmgym.evaluation import evaluate_mixture, share_out
from glmgym.events import (
    CheckpointSaved,
    EpisodeEvaluated,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    OnEvent,
    ParityChecked,
    RolloutFinished,
    RunStarted,
    StepFinished,
)
from glmgym.fleet import Fleet
from glmgym.mixture import Source, task_stream
from glmgym.registry import load_component
from glmgym.rewards import RewardMix
from glmgym.rollout import House, run_trajectory
from glmgym.sandbox import SandboxProvider
from glmgym.scoring import Teachers, TeacherScore
from glmgym.store import TrajectoryStore, write_credit
from glmgym.trajectory import Trajectory
from glmgym_trainers import checkpoint
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.engines import TorchEngine
from glmgym_trainers.imitation import check_demonstrator, demonstrate
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import Policy, load_policy
from glmgym_trainers.recipe import Recipe
from glmgym_trainers.rewards import open_rewards
from glmgym_trainers.runlog import RolloutWindow, RunLog, batch_metrics
from glmgym_trainers.teachers import check_teachers, forget_discarded, load_teachers, teacher_numbers

P = ParamSpec("P")
R = TypeVar("R")


class Interrupted(GlmgymError):
    """The run was asked to stop and did so cleanly; it can be resumed."""


@dataclass(slots=True)
class _Site:
    """Everything a run is made of, once built."""

    recipe: Recipe
    directory: Path
    sources: tuple[Source, ...]
    policy: Policy
    learner: Learner
    engine: TorchEngine
    provider: SandboxProvider | None
    teachers: Teachers | None
    house: House
    store: TrajectoryStore
    log: RunLog
    on_event: OnEvent
    version: int
    thread: ThreadPoolExecutor

    async def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run what works on tensors beside the event loop.

        Always in the same thread: an allocator keeps for each thread what an update once needed there.
        """
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(function, *args, **kwargs))


async def train(recipe: Recipe, directory: Path, *, resume: bool, on_event: OnEvent = lambda event: None) -> None:
    """Run a recipe to its end in ``directory``.

    The first interrupt (SIGINT, SIGTERM) finishes the current update, saves and raises ``Interrupted``.

    Raises:
        ConfigError: the recipe cannot work here, or the directory holds another run.
        ParityError: engine and trainer disagree on the log-probs of the same ids.
        GlmgymError: the store or a checkpoint cannot be written; what was committed stays.
    """
    torch.set_num_threads(recipe.trainer.threads)
    # The engine thread needs the interpreter briefly between two operations; at the default of 5 ms it would
    # wait longer for its turn than a decode step takes.
    sys.setswitchinterval(0.0005)
    torch.manual_seed(recipe.seed)
    checkpoint.check_directory(directory, recipe, resume=resume)
    latest = checkpoint.latest(directory) if resume else None
    # Adapters sit on the weights that the run started from; a checkpoint holds the two merged.
    policy = load_policy(latest.policy_dir if latest and not recipe.policy.lora_rank else recipe.policy.init)
    algorithm = ALGORITHMS[recipe.algorithm_name](recipe.algorithm)
    learner = Learner(
        policy.model, algorithm, recipe.trainer, temperature=recipe.sampling.temperature, tuning=recipe.policy
    )
    if latest is not None:
        learner.load_state(latest.state())
    sources = recipe.env.sources()
    if algorithm.demonstrates:
        for source in sources:
            check_demonstrator(source.spec)
    engine = TorchEngine(
        learner.policy(),
        max_slots=recipe.policy.max_slots,
        context_length=recipe.policy.context_length,
        version=learner.version,
    )
    provider: SandboxProvider | None = None
    teachers: Teachers | None = None
    rewards = RewardMix()
    try:
        rewards = open_rewards(recipe.rewards, score_s=recipe.rollout.score_s)
        teachers = load_teachers(
            recipe.teachers,
            policy,
            algorithm,
            context_length=recipe.policy.context_length,
            temperature=recipe.sampling.temperature,
        )
        if any(source.spec.box is not None for source in sources):
            provider = _open_provider(recipe)
        house = House(
            engine, policy.chat, provider, recipe.rollout, recipe.sampling, recipe.compaction, rewards=rewards
        )
        # Only now: a mistake in the recipe must not leave a run behind that neither starts nor resumes.
        checkpoint.prepare_directory(directory, recipe, resume=resume)
        with (
            TrajectoryStore.open(directory / "trajectories" / "store.sqlite") as store,
            RunLog(directory, upto_step=learner.step_count) as log,
            ThreadPoolExecutor(1, "learner") as thread,
        ):
            store.recover(step=learner.step_count, version=learner.version)
            site = _Site(
                recipe, directory, sources, policy, learner, engine, provider, teachers, house, store, log,
                _fan_out(log, on_event), learner.version, thread,
            )  # fmt: skip
            await _run(site)
    finally:
        await engine.close()
        await rewards.close()
        if teachers is not None:
            await teachers.close()
        if provider is not None:
            await provider.close()


async def _run(site: _Site) -> None:
    total = site.learner.total_steps
    site.on_event(RunStarted(site.directory, total, site.learner.step_count))
    with _interrupts() as stop:
        if site.learner.step_count == 0:
            await _evaluate(site, "before", stop)
        if site.learner.step_count < total:
            await _learn(site, total, stop)
        await _evaluate(site, "after", stop)
    await site.compute(site.log.plot)
    checkpoint.mark_finished(site.directory, site.recipe, site.learner.step_count)


async def _learn(site: _Site, total: int, stop: asyncio.Event) -> None:
    """Updates until ``total``; the fleet runs beside them."""
    recipe, learner, store = site.recipe, site.learner, site.store
    window = RolloutWindow()

    def on_event(event: Event) -> None:
        if isinstance(event, RolloutFinished):
            window.add(event)
            if site.teachers is not None:
                site.teachers.submit(event.trajectory)
        site.on_event(event)

    fleet = Fleet(
        task_stream(site.sources, recipe.seed, skip=store.counts().issued // learner.algorithm.group_size),
        site.house,
        store,
        recipe.fleet,
        batch_size=recipe.trainer.batch_size,
        group_size=learner.algorithm.group_size,
        seed=recipe.seed,
        on_event=on_event,
        play=demonstrate if learner.algorithm.demonstrates else run_trajectory,
    )
    fleet.start()
    try:
        while learner.step_count < total:
            batch = await _unless_stopped(fleet.take(version=site.version), stop)
            batch, scores, teacher_metrics = await _unless_stopped(_teach(site, batch), stop)
            if learner.step_count == 0 and not learner.algorithm.demonstrates:
                await _parity(site, batch)
            ids = [trajectory.id for trajectory in batch]
            batch_numbers = batch_metrics(batch, site.version)
            await asyncio.to_thread(store.begin_step, ids, learner.step_count + 1)
            learned = await site.compute(learner.step, batch, scores)
            if learner.version > site.version:
                tensors = await site.compute(learner.weights)
                site.version = await site.engine.switch(Weights(learner.version, tensors=tensors))
                if site.version != learner.version:
                    raise GlmgymError(f"published version {learner.version}; the engine acknowledged {site.version}")
            if learner.step_count % recipe.trainer.save_every == 0 or learner.step_count == total:
                await _save(site)
            await asyncio.to_thread(write_credit, store.path.parent, learner.step_count, learned.advantages)
            await asyncio.to_thread(store.consume, ids, version=site.version, trained=learned.trained)
            await fleet.freed()
            numbers = {**batch_numbers, **teacher_metrics, **learned.metrics, **window.drain(), **fleet.numbers()}
            site.on_event(StepFinished(learner.step_count, numbers))
    except Interrupted:
        if learner.step_count % recipe.trainer.save_every:
            await _save(site)
        raise
    finally:
        await fleet.close()


async def _evaluate(site: _Site, label: str, stop: asyncio.Event) -> None:
    specs = [source.spec for source in site.sources]
    episodes = sum(share_out(site.recipe.eval.episodes, specs))
    if not episodes or site.log.has_evaluation(label):
        return
    site.on_event(EvaluationStarted(label, episodes))
    result = await _unless_stopped(
        evaluate_mixture(
            specs,
            site.house,
            num_tasks=site.recipe.eval.episodes,
            seed=site.recipe.seed,
            max_live=site.recipe.fleet.max_live,
            on_finished=lambda trajectory: site.on_event(EpisodeEvaluated(trajectory)),
        ),
        stop,
    )
    site.on_event(EvaluationFinished(label, result.summary()))


async def _teach(
    site: _Site, batch: list[Trajectory]
) -> tuple[list[Trajectory], Mapping[tuple[str, int], TeacherScore], dict[str, float]]:
    """The part of a batch that has teachers' scores, the scores, and numbers about them; the rest is discarded.

    Raises:
        GlmgymError: no trajectory of the batch could be scored.
    """
    if site.teachers is None:
        return batch, {}, {}
    scored = await site.teachers.scores(batch)
    taught = [trajectory for trajectory in batch if trajectory.id not in scored.failures]
    if not taught:
        failure = next(iter(scored.failures.values()))
        raise GlmgymError(f"none of {len(batch)} trajectories could be scored by a teacher: {failure.message}")
    for id, failure in scored.failures.items():
        await asyncio.to_thread(site.store.discard, [id], f"teacher: {failure.message}")
    await forget_discarded(site.teachers, site.store)
    for checked in check_teachers(taught, scored.scores, bound=site.recipe.teachers.max_initial_kl):
        if not site.log.has_teacher(checked.teacher):
            site.on_event(checked)
    numbers = {**teacher_numbers(taught, scored.scores), "teacher/failures": float(len(scored.failures))}
    return taught, scored.scores, numbers


async def _parity(site: _Site, batch: list[Trajectory]) -> None:
    found = await site.compute(site.learner.parity, batch, bound=site.recipe.trainer.max_mismatch)
    site.on_event(ParityChecked(found.max_abs, found.mean_abs, found.num_tokens))


async def _save(site: _Site) -> None:
    path = await site.compute(
        checkpoint.save, site.directory, site.learner, site.policy, keep=site.recipe.trainer.keep_checkpoints
    )
    site.on_event(CheckpointSaved(site.learner.step_count, path))


async def _unless_stopped(work: Coroutine[Any, Any, R], stop: asyncio.Event) -> R:
    """The result of ``work``; if the run is asked to stop first, ``work`` is cancelled and Interrupted raised."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted("stopped on request; run the same command with --resume to go on")
        return task.result()
    finally:
        for waiting in (task, stopped):
            waiting.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


def _open_provider(recipe: Recipe) -> SandboxProvider:
    """The recipe's backend, with room for a grading box beside every attempt's own: fewer could wait for each other."""
    room = 2 * recipe.fleet.max_live + recipe.sandbox.warm
    provider: SandboxProvider = load_component("sandboxes", recipe.sandbox.backend)(
        {"warm": recipe.sandbox.warm, "max_live": room}
    )
    return provider


@contextmanager
def _interrupts() -> Iterator[asyncio.Event]:
    """An event set by the first SIGINT or SIGTERM; the second one interrupts at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _fan_out(*listeners: OnEvent) -> OnEvent:
    def on_event(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return on_event

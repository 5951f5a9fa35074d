"""Many trajectories at once while training runs: slots, admission, staleness, and the hand-over to the trainer.

Owned here: when an attempt may start and when its record may be trained.

Staleness is bounded three times. *Admission*: at most ``(max_staleness + 1) * batch_size`` attempts are unfinished
(issued and neither consumed nor discarded), so slots are freed by the trainer or by a drop. *Holding*: ``take`` waits
for running attempts that one more update would make too old, so that slow tasks are not starved by discarding.
*Consumption*: what is still older than ``max_staleness`` versions, measured from its oldest token, is discarded with
its reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator

from pydantic import Field

from glmgym.env import Task
from glmgym.errors import ConfigError, GlmgymError
from glmgym.events import OnEvent, RolloutFinished
from glmgym.registry import EnvSpec
from glmgym.rollout import House, Job, job_seed, run_trajectory
from glmgym.settings import Settings
from glmgym.store import TrajectoryStore
from glmgym.trajectory import NO_VERSION, Trajectory

logger = logging.getLogger(__name__)


class RolloutStalled(GlmgymError):
    """No attempt succeeded for too long; the message names those still running and the latest failure."""


class FleetSettings(Settings):
    """How many attempts run, and how old their tokens may be when they are trained."""

    max_live: int = Field(default=48, ge=1)  # attempts running at once
    max_staleness: int = Field(default=4, ge=0)  # versions from a trajectory's oldest token to its update; ours
    max_retries: int = Field(default=2, ge=0)  # further attempts after a retryable failure
    stall_s: float = Field(default=300.0, gt=0)  # no attempt succeeded for this long is an error
    max_failures: int = Field(default=200, ge=1)  # so many failures in a row, and no success between, is an error


class Fleet:
    """Keeps attempts running until closed; ``take`` and ``freed`` are the trainer's side.

    Args:
        indices: task indices of the training split, endlessly.
        batch_size: trajectories per update, a multiple of ``group_size``.
        group_size: attempts at the same task, taken together once all have ended.
    """

    def __init__(
        self,
        spec: EnvSpec,
        house: House,
        store: TrajectoryStore,
        indices: Iterator[int],
        settings: FleetSettings,
        *,
        batch_size: int,
        group_size: int = 1,
        seed: int = 0,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        if batch_size % group_size:
            raise ConfigError(f"batch_size={batch_size} is not a multiple of group_size={group_size}")
        self._spec, self._house, self._store = spec, house, store
        self._indices, self._settings = indices, settings
        self._num_groups, self._group_size, self._seed = batch_size // group_size, group_size, seed
        self._capacity = (settings.max_staleness + 1) * batch_size
        self._on_event = on_event
        self._live: dict[str, int] = {}  # id of a running attempt -> engine version at its birth
        self._open_groups: dict[str, int] = {}  # group id -> members that have not ended
        self._changed = asyncio.Condition()
        self._crash: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_retrying = 0  # failed attempts whose slot is kept for their successor
        self._succeeded_at = 0.0  # on the loop's clock: the latest attempt without a failure
        self._last_failure = ""
        self._failures_in_a_row = 0
        self.num_stale = 0

    def start(self) -> None:
        """Begin issuing attempts."""
        self._spawn(self._issue_attempts)

    @property
    def num_live(self) -> int:
        return len(self._live)

    async def take(self, *, version: int) -> list[Trajectory]:
        """One batch for the update that leads from ``version`` to the next: whole groups, oldest first.

        Trajectories go from ready to training; those older than ``max_staleness`` are discarded and counted.

        Raises:
            RolloutStalled: no attempt succeeded for ``stall_s`` seconds of waiting, or too many in a row failed.
            Exception: whatever stopped the fleet.
        """
        called_at = asyncio.get_running_loop().time()
        async with self._changed:
            while True:
                if self._crash is not None:
                    raise self._crash
                if self._failures_in_a_row >= self._settings.max_failures:
                    raise RolloutStalled(self._stalled(f"{self._failures_in_a_row} attempts failed in a row"))
                if not self._must_hold(version) and (ids := await self._choose(version)):
                    return await asyncio.to_thread(self._store.take_ids, ids)
                try:
                    async with asyncio.timeout_at(max(called_at, self._succeeded_at) + self._settings.stall_s):
                        await self._changed.wait()
                except TimeoutError:
                    waited = f"no attempt succeeded for {self._settings.stall_s:g} s"
                    raise RolloutStalled(self._stalled(waited)) from None

    async def freed(self) -> None:
        """Trajectories were consumed or dropped: slots may be free."""
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Cancel what runs and wait for it; interrupted attempts are discarded."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._store.interrupt)

    def _stalled(self, what: str) -> str:
        running = ", ".join(sorted(self._live)) or "none"
        failure = f"; latest failure: {self._last_failure}" if self._last_failure else ""
        return f"{what}; running: {running}{failure}"

    def _must_hold(self, version: int) -> bool:
        """True while an attempt is running that the coming update would make too old."""
        return any(born <= version - self._settings.max_staleness for born in self._live.values())

    async def _choose(self, version: int) -> list[str]:
        """Ids of enough whole groups for one batch, or none yet. Drops what is too old."""
        groups: dict[str, list[str]] = {}
        for row in await asyncio.to_thread(self._store.ready):
            if is_stale(row.oldest_version, version, self._settings.max_staleness):
                await asyncio.to_thread(self._store.discard, [row.id], f"stale at version {version}")
                self.num_stale += 1
                self._changed.notify_all()
            elif (group := row.group_id or row.id) not in self._open_groups:
                groups.setdefault(group, []).append(row.id)
        if len(groups) < self._num_groups:
            return []
        return [id for members in list(groups.values())[: self._num_groups] for id in members]

    async def _issue_attempts(self) -> None:
        for index in self._indices:
            task = await asyncio.to_thread(self._spec.tasks.task, "train", index)
            group_id = ""
            for member in range(self._group_size):
                await self._free_slot()
                job = await self._issue(task, group_id)
                if self._group_size > 1 and member == 0:
                    group_id = job.id
                    self._open_groups[group_id] = self._group_size
                self._spawn(self._attempt, job, group_id)

    async def _free_slot(self) -> None:
        async with self._changed:
            while len(self._live) >= self._settings.max_live or not await self._has_capacity():
                await self._changed.wait()

    async def _has_capacity(self) -> bool:
        counts = await asyncio.to_thread(self._store.counts)
        return counts.unfinished + self._num_retrying < self._capacity

    async def _issue(self, task: Task, group_id: str) -> Job:
        """Record an attempt as issued under the version it will start with."""
        version = self._house.engine.version
        name = await asyncio.to_thread(self._store.issue, task.id, self._spec.id, version=version, group_id=group_id)
        self._live[name] = version
        return Job(name, task, self._spec, job_seed(self._seed, name), group_id)

    async def _attempt(self, job: Job, group_id: str) -> None:
        """An attempt and, while it fails in a way that a retry may help, its successors in the same slot."""
        for retries_left in reversed(range(self._settings.max_retries + 1)):
            await asyncio.to_thread(self._store.start, job.id)
            trajectory = await run_trajectory(job, self._house)
            failure = trajectory.outcome.failure
            again = failure is not None and failure.retryable and retries_left > 0
            self._num_retrying += again  # before its row is discarded: the slot is never free in between
            await asyncio.to_thread(self._store.finish, trajectory)
            self._note(trajectory)
            if not again:
                break
            failed, job = job, await self._issue(job.task, group_id)
            self._num_retrying -= 1
            del self._live[failed.id]
        async with self._changed:
            del self._live[job.id]
            if group_id:
                self._open_groups[group_id] -= 1
                if not self._open_groups[group_id]:
                    del self._open_groups[group_id]
            self._changed.notify_all()

    def _note(self, trajectory: Trajectory) -> None:
        failure = trajectory.outcome.failure
        if failure is None:
            self._succeeded_at = asyncio.get_running_loop().time()
            self._failures_in_a_row = 0
        else:
            self._failures_in_a_row += 1
            self._last_failure = f"{failure.origin}: {failure.message}"
            logger.warning("rollout %s: %s failure: %s", trajectory.id, failure.origin, failure.message)
        self._on_event(RolloutFinished(trajectory, self._house.engine.version))

    def _spawn(self, work: Callable[..., Coroutine[None, None, None]], *arguments: object) -> None:
        task = asyncio.ensure_future(self._guarded(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Coroutine[None, None, None]], *arguments: object) -> None:
        """A programming mistake in any attempt stops the run: ``take`` raises it."""
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001 - kept, and raised by take
            async with self._changed:
                self._crash = self._crash or error
                self._changed.notify_all()


def is_stale(oldest_version: int, version: int, max_staleness: int) -> bool:
    """True if a trajectory's *oldest* sampled token is more than ``max_staleness`` versions behind (GLM-5, 4.1).

    Raises:
        GlmgymError: the trajectory claims to come from the future: version numbers were restarted or mixed up.
    """
    if oldest_version == NO_VERSION:
        return False
    if oldest_version > version:
        raise GlmgymError(f"a trajectory of version {oldest_version} reached a trainer that is at {version}")
    return version - oldest_version > max_staleness

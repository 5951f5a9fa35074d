"""Many trajectories at once while training runs: slots, admission, staleness, and the hand-over to the trainer.

Owned here: when an attempt may start and when its record may be trained.

Staleness is bounded three times. *Admission*: at most ``(max_staleness + 1) * batch_size`` attempts are unfinished
(issued and neither consumed nor discarded), so slots are freed by the trainer or by a drop. *Holding*: ``take`` waits
for running attempts that one more update would make too old, so that slow tasks are not starved by discarding.
*Consumption*: what is still older than ``max_staleness`` versions, measured from its oldest token, is discarded with
its reason.

A group of attempts at one task teaches by comparison. It is dropped unless *more than half* of its attempts are valid
(GLM-5, 4.1); a failed attempt has no vote, and neither has one that became too old. A group whose *outcomes* are all
equal has no signal. Such groups are counted; with ``dynamic_sampling`` they are discarded too and their slots filled
anew, so that batches keep their size. Shaping rewards do not count here: a group that differs in style alone would
otherwise be trained on style alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from glmgym.env import Task
from glmgym.errors import ConfigError, GlmgymError
from glmgym.events import OnEvent, RolloutFinished
from glmgym.registry import EnvSpec
from glmgym.rollout import House, Job, job_seed, run_trajectory
from glmgym.settings import Settings
from glmgym.store import TrajectoryStore
from glmgym.threads import in_thread
from glmgym.trajectory import NO_VERSION, Trajectory

logger = logging.getLogger(__name__)

Play = Callable[[Job, House], Awaitable[Trajectory]]

SAME_OUTCOME = 1e-9  # outcomes that differ by less are equal: sums of the same parts may differ in their last bits


class RolloutStalled(GlmgymError):
    """No attempt succeeded for too long; the message names those still running and the latest failure."""


class NoSignal(GlmgymError):
    """Every group of late was discarded: nothing can be learned from these tasks as they are played."""


class FleetSettings(Settings):
    """How many attempts run, and how old their tokens may be when they are trained."""

    max_live: int = Field(default=48, ge=1)  # attempts running at once
    max_staleness: int = Field(default=4, ge=0)  # versions from a trajectory's oldest token to its update; ours
    max_retries: int = Field(default=2, ge=0)  # further attempts after a retryable failure
    stall_s: float = Field(default=300.0, gt=0)  # no attempt succeeded for this long is an error
    max_failures: int = Field(default=200, ge=1)  # so many failures in a row, and no success between, is an error
    dynamic_sampling: bool = False  # discard groups whose outcomes are all equal and sample others in their place
    max_refill: int = Field(default=100, ge=1)  # so many groups in a row, all discarded as they ended, is an error


@dataclass(slots=True)
class _Group:
    """The attempts at one task while they run: how many have not ended, and the outcomes of the valid ones by id."""

    num_open: int
    outcomes: dict[str, float] = field(default_factory=dict)


class Fleet:
    """Keeps attempts running until closed; ``take`` and ``freed`` are the trainer's side.

    Args:
        tasks: environments and indices of their training splits, endlessly.
        batch_size: trajectories per update, a multiple of ``group_size``.
        group_size: attempts at the same task, taken together once all have ended.
        play: makes one attempt; another than the policy's own where somebody else plays.
    """

    def __init__(
        self,
        tasks: Iterator[tuple[EnvSpec, int]],
        house: House,
        store: TrajectoryStore,
        settings: FleetSettings,
        *,
        batch_size: int,
        group_size: int = 1,
        seed: int = 0,
        on_event: OnEvent = lambda event: None,
        play: Play = run_trajectory,
    ) -> None:
        if batch_size % group_size:
            raise ConfigError(f"batch_size={batch_size} is not a multiple of group_size={group_size}")
        self._stream, self._house, self._store = tasks, house, store
        self._settings = settings
        self._num_groups, self._group_size, self._seed = batch_size // group_size, group_size, seed
        self._capacity = (settings.max_staleness + 1) * batch_size
        self._on_event, self._play = on_event, play
        self._live: dict[str, int] = {}  # id of a running attempt -> engine version at its birth
        self._open_groups: dict[str, _Group] = {}  # by group id
        self._changed = asyncio.Condition()
        self._crash: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._succeeded_at = 0.0  # on the loop's clock: the latest attempt without a failure
        self._last_failure = ""
        self._failures_in_a_row = 0
        self._discarded_in_a_row = 0  # groups
        self._last_discarded = ""
        self.num_stale = 0
        self.num_no_signal = 0  # groups
        self.num_dropped = 0  # groups with too few valid attempts

    def start(self) -> None:
        """Begin issuing attempts."""
        self._spawn(self._issue_attempts)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def numbers(self) -> dict[str, float]:
        """Counts since the start, for the log."""
        return {
            "fleet/live": float(self.num_live),
            "fleet/stale_total": float(self.num_stale),
            "fleet/no_signal_groups": float(self.num_no_signal),
            "fleet/dropped_groups": float(self.num_dropped),
        }

    async def take(self, *, version: int) -> list[Trajectory]:
        """One batch for the update that leads from ``version`` to the next: whole groups, oldest first.

        Trajectories go from ready to training; those older than ``max_staleness`` are discarded and counted.

        Raises:
            RolloutStalled: no attempt succeeded for ``stall_s`` seconds of waiting, or too many in a row failed.
            NoSignal: no batch is ready, and the latest ``max_refill`` groups were all discarded.
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
                    return await in_thread(self._store.take_ids, ids)
                if self._discarded_in_a_row >= self._settings.max_refill:
                    raise NoSignal(f"{self._discarded_in_a_row} groups in a row were discarded; {self._last_discarded}")
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
                await self._discard([row.id], f"stale at version {version}")
                self.num_stale += 1
            elif (group := row.group_id or row.id) not in self._open_groups:
                groups.setdefault(group, []).append(row.id)
        for group in [group for group, ids in groups.items() if 2 * len(ids) <= self._group_size]:
            self.num_dropped += 1  # it lost members after its end: they became too old, or a kill took them
            await self._discard(members := groups.pop(group), self._too_few(len(members)))
        if len(groups) < self._num_groups:
            return []
        return [id for members in list(groups.values())[: self._num_groups] for id in members]

    async def _issue_attempts(self) -> None:
        for spec, index in self._stream:
            task = await asyncio.to_thread(spec.tasks.task, "train", index)
            group_id = ""
            for member in range(self._group_size):
                await self._free_slot()
                job = await self._issue(spec, task, group_id)
                if self._group_size > 1 and member == 0:
                    group_id = job.id
                    self._open_groups[group_id] = _Group(self._group_size)
                self._spawn(self._attempt, job, group_id)

    async def _free_slot(self) -> None:
        async with self._changed:
            while len(self._live) >= self._settings.max_live or not await self._has_capacity():
                await self._changed.wait()

    async def _has_capacity(self) -> bool:
        counts = await asyncio.to_thread(self._store.counts)
        return counts.unfinished < self._capacity

    async def _issue(self, spec: EnvSpec, task: Task, group_id: str) -> Job:
        """Record an attempt as issued under the version it will start with."""
        version = self._house.engine.version
        name = await in_thread(self._store.issue, task.id, spec.id, version=version, group_id=group_id)
        return self._job(name, version, spec, task, group_id)

    async def _retry(self, job: Job, failed: Trajectory, group_id: str) -> Job:
        """The successor of a failed attempt; of the two, one is live."""
        version = self._house.engine.version
        name = await in_thread(self._store.retry, failed, version=version, group_id=group_id)
        del self._live[job.id]
        return self._job(name, version, job.spec, job.task, group_id)

    def _job(self, name: str, version: int, spec: EnvSpec, task: Task, group_id: str) -> Job:
        self._live[name] = version
        return Job(name, task, spec, job_seed(self._seed, name), group_id)

    async def _attempt(self, job: Job, group_id: str) -> None:
        """An attempt and, while it fails in a way that a retry may help, its successors in the same slot."""
        for retries_left in reversed(range(self._settings.max_retries + 1)):
            await in_thread(self._store.start, job.id)
            trajectory = await self._play(job, self._house)
            failure = trajectory.outcome.failure
            again = failure is not None and failure.retryable and retries_left > 0
            if not again:
                await in_thread(self._store.finish, trajectory)
                self._note(trajectory)
                break
            job = await self._retry(job, trajectory, group_id)
            self._note(trajectory)
            async with self._changed:
                self._changed.notify_all()  # take may have waited for the failed one alone
        async with self._changed:
            del self._live[job.id]
            if group_id:
                await self._ended(group_id, trajectory)
            self._changed.notify_all()

    async def _ended(self, group_id: str, trajectory: Trajectory) -> None:
        """Note a member's end; after the last one, settle whether the group stays."""
        group = self._open_groups[group_id]
        group.num_open -= 1
        if trajectory.outcome.is_valid:
            group.outcomes[trajectory.id] = trajectory.outcome.result()
        if group.num_open:
            return
        del self._open_groups[group_id]
        ready = {row.id for row in await asyncio.to_thread(self._store.ready)}  # early ones may be too old by now
        ids = [id for id in group.outcomes if id in ready]
        outcomes = [group.outcomes[id] for id in ids]
        self._discarded_in_a_row += 1
        if 2 * len(ids) <= self._group_size:
            self.num_dropped += 1
            failure = f" ({self._last_failure})" if self._last_failure else ""
            self._last_discarded = f"of the latest, {self._too_few(len(ids))}{failure}"
            await self._discard(ids, self._too_few(len(ids)))
        elif max(outcomes) - min(outcomes) <= SAME_OUTCOME and self._settings.dynamic_sampling:
            self.num_no_signal += 1
            self._last_discarded = (
                f"every outcome of the latest is {outcomes[0]:g}: the tasks are too hard or too easy for this policy; "
                "take others, a larger group_size or a larger fleet.max_refill"
            )
            await self._discard(ids, "no signal")
        else:
            self.num_no_signal += max(outcomes) - min(outcomes) <= SAME_OUTCOME
            self._discarded_in_a_row = 0

    def _too_few(self, num_valid: int) -> str:
        return f"{num_valid} of {self._group_size} attempts are valid"

    async def _discard(self, ids: Sequence[str], reason: str) -> None:
        """Never to be trained; their slots are free."""
        await in_thread(self._store.discard, ids, reason)
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

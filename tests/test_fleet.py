"""Laws of many trajectories at once: nothing is lost, nothing is too old, nothing waits for ever."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from episodes import CHAT, DONE, LOOK, Echo, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.chat import Chat
from glmgym.engine import Weights
from glmgym.engines import ScriptedEngine
from glmgym.env import Env, Step
from glmgym.errors import ConfigError, EnvFailure, GlmgymError, SandboxFailure
from glmgym.events import OnEvent
from glmgym.fleet import Fleet, FleetSettings, RolloutStalled, is_stale
from glmgym.messages import Message
from glmgym.rollout import House
from glmgym.store import Counts, State, TrajectoryStore
from glmgym.trajectory import NO_VERSION, Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory


class Site:
    """A fleet and the trainer's side of it: ``take``, then ``learn`` publishes the next version and consumes."""

    def __init__(self, fleet: Fleet, store: TrajectoryStore, engine: ScriptedEngine) -> None:
        self.fleet, self.store, self.engine = fleet, store, engine

    async def take(self) -> list[Trajectory]:
        return await self.fleet.take(version=self.engine.version)

    async def learn(self, batch: list[Trajectory]) -> None:
        ids = [trajectory.id for trajectory in batch]
        await asyncio.to_thread(self.store.begin_step, ids, self.engine.version + 1)  # as a run does: it may wait long
        await self.engine.switch(Weights(self.engine.version + 1))
        await asyncio.to_thread(self.store.consume, ids, version=self.engine.version)
        await self.fleet.freed()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.002)


@asynccontextmanager
async def running(
    make: Callable[[], Env],
    *,
    batch_size: int,
    group_size: int = 1,
    indices: Iterator[int] | None = None,
    on_event: OnEvent = lambda event: None,
    chat: Chat = CHAT,
    turns: list[list[int]] | None = None,
    version: int = 0,
    store_class: type[TrajectoryStore] = TrajectoryStore,
    **options: Any,
) -> AsyncIterator[Site]:
    """A started fleet over a store of its own, closed at the end; the law is checked then."""
    engine = ScriptedEngine(turns or [DONE], version=version)
    with TemporaryDirectory() as directory, store_class.open(Path(directory) / "store.sqlite") as store:
        fleet = Fleet(
            zip(itertools.repeat(spec_of(make)), itertools.count() if indices is None else indices),
            House(engine, chat, None),
            store,
            FleetSettings(**{"stall_s": 60.0, **options}),
            batch_size=batch_size,
            group_size=group_size,
            on_event=on_event,
        )
        fleet.start()
        try:
            yield Site(fleet, store, engine)
        finally:
            await fleet.close()
            assert store.counts().holds_law()


class Gated(Echo):
    """Waits in its step until the gate of its task opens."""

    gates: dict[str, asyncio.Event]

    async def step(self, reply: Message) -> Step:
        if self.task.id in self.gates:
            await self.gates[self.task.id].wait()
        return await super().step(reply)


def gated(*indices: int) -> tuple[type[Gated], dict[str, asyncio.Event]]:
    gates = {f"train/{index}": asyncio.Event() for index in indices}
    return type("GatedHere", (Gated,), {"gates": gates}), gates


# Nothing is lost


async def test_what_is_not_taken_stays_ready() -> None:
    """S1: 10 ready, take 4: the oldest 4 are in training and 6 remain."""
    async with running(Echo, batch_size=4, max_staleness=2, indices=iter(range(10))) as site:
        await site.until(lambda: site.store.counts().ready == 10)
        batch = await site.take()
        assert [trajectory.task_id for trajectory in batch] == [f"train/{i}" for i in range(4)]
        counts = site.store.counts()
        assert (counts.issued, counts.training, counts.ready, counts.discarded) == (10, 4, 6, 0)


class Shaky(Echo):
    """Fails, retryably or for good, and takes its time, as told by the task's index."""

    fate: list[tuple[int, int]]  # milliseconds, and 0: fine, 1: a broken box, 2: a broken environment

    async def step(self, reply: Message) -> Step:
        milliseconds, broken = self.fate[int(self.task.id.split("/")[1]) % len(self.fate)]
        await asyncio.sleep(milliseconds / 1000)
        if broken == 1:
            raise SandboxFailure("no box")
        if broken == 2:
            raise EnvFailure("broken")
        return await super().step(reply)


@settings(max_examples=10, deadline=None)
@given(
    num_groups=st.integers(1, 3),
    group_size=st.integers(1, 3),
    max_staleness=st.integers(0, 2),
    max_live=st.integers(1, 12),
    fate=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 2])), min_size=2, max_size=6).filter(
        lambda fate: any(broken == 0 for _, broken in fate)
    ),
)
def test_conservation_admission_and_age_hold_at_every_step(
    num_groups: int, group_size: int, max_staleness: int, max_live: int, fate: list[tuple[int, int]]
) -> None:
    """S1: issued == all states added up; unfinished <= (max_staleness + 1) * batch; no row trained twice or too old."""
    batch_size = num_groups * group_size

    async def run() -> None:
        trained: list[str] = []
        make = type("ShakyHere", (Shaky,), {"fate": fate})

        def check(event: object = None) -> None:
            counts = site.store.counts()
            assert counts.holds_law()
            assert counts.unfinished <= (max_staleness + 1) * batch_size
            assert site.fleet.num_live <= max_live

        async with running(
            make,
            batch_size=batch_size,
            group_size=group_size,
            max_staleness=max_staleness,
            max_live=max_live,
            max_retries=1,
            on_event=check,
        ) as site:
            for _ in range(3):
                batch = await site.take()
                check()
                assert all(site.engine.version - t.oldest_version <= max_staleness for t in batch)
                assert len({t.group_id or t.id for t in batch}) == num_groups
                trained += [t.id for t in batch]
                await asyncio.sleep(0.002)
                await site.learn(batch)
                check()
        assert len(set(trained)) == len(trained)

    asyncio.run(run())


class SlowlyIssued(TrajectoryStore):
    """The thread that issues is off the CPU for a while before it has the store."""

    asked = 0

    def issue(self, task_id: str, env_id: str, *, version: int, group_id: str = "") -> str:
        self.asked += 1
        time.sleep(0.1)
        return super().issue(task_id, env_id, version=version, group_id=group_id)


async def test_nothing_is_issued_after_the_end() -> None:
    """Cancelling does not stop a thread: what it issued after the last look would stay unfinished for ever."""
    async with running(Echo, batch_size=2, store_class=SlowlyIssued) as site:
        assert isinstance(site.store, SlowlyIssued)
        await site.until(lambda: site.store.asked > 0)  # type: ignore[attr-defined]
        await site.fleet.close()
        await asyncio.sleep(0.3)
        counts = site.store.counts()
        assert (counts.issued, counts.not_started, counts.running) == (1, 0, 0)


class SlowlyCounted(TrajectoryStore):
    """Threads that are off the CPU for a while: before they issue, and between a look and its answer."""

    def issue(self, task_id: str, env_id: str, *, version: int, group_id: str = "") -> str:
        time.sleep(0.05)
        return super().issue(task_id, env_id, version=version, group_id=group_id)

    def counts(self) -> Counts:
        found = super().counts()
        if found.discarded and threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)
        return found


async def test_a_slot_is_never_free_between_a_failed_attempt_and_its_successor() -> None:
    """A count from before the successor was issued, read after it, took the slot for free: one attempt too many."""
    fail, succeed, attempts = asyncio.Event(), asyncio.Event(), itertools.count()

    class FailsOnce(Echo):
        async def step(self, reply: Message) -> Step:
            if self.task.id == "train/0":
                if next(attempts) == 0:
                    await fail.wait()
                    raise SandboxFailure("no box")
                await succeed.wait()
            return await super().step(reply)

    async with running(FailsOnce, batch_size=2, max_staleness=0, store_class=SlowlyCounted) as site:
        await site.until(lambda: site.store.counts().ready == 1)
        fail.set()
        await site.until(lambda: site.store.counts().discarded == 1)
        await site.fleet.freed()  # as any other attempt's end: whoever waits for a slot looks again
        await asyncio.sleep(0.6)
        counts = site.store.counts()
        assert (counts.ready, counts.unfinished, counts.issued) == (1, 2, 3)


# Nothing is too old


@pytest.mark.parametrize(("max_staleness", "batch_size", "most"), [(0, 2, 2), (1, 2, 4), (4, 3, 15)])
async def test_admission_bounds_what_is_unfinished(max_staleness: int, batch_size: int, most: int) -> None:
    """issued - consumed - discarded <= (max_staleness + 1) * batch, and the bound is used in full."""
    async with running(Echo, batch_size=batch_size, max_staleness=max_staleness) as site:
        await site.until(lambda: site.store.counts().ready == most)
        await asyncio.sleep(0.05)
        assert site.store.counts().issued == most
        batch = await site.take()
        await asyncio.sleep(0.05)
        assert site.store.counts().issued == most  # taken is not yet consumed
        await site.learn(batch)
        await site.until(lambda: site.store.counts().ready == most)
        assert site.store.counts().issued == most + batch_size


def trajectory_of(id: str, task_id: str, versions: list[int]) -> Trajectory:
    n = len(versions)
    action = Span(
        SpanKind.ACTION, np.arange(n, dtype=np.int32), np.full(n, -0.5, np.float32), np.array(versions, np.int32)
    )
    segment = Segment((Span(SpanKind.PROMPT, np.array([1], np.int32)), action))
    return Trajectory(id, task_id, "echo-v0", (segment,), Outcome(Stop.DONE, (Reward("r", 1.0),)))


@pytest.mark.parametrize(("max_staleness", "is_kept"), [(3, False), (4, True)])
async def test_age_is_measured_from_the_oldest_token(max_staleness: int, is_kept: bool) -> None:
    """Versions (5, 6, 8) at version 9 are 4 old: too old for 3, young enough for 4."""
    nothing: Iterator[int] = iter(())
    async with running(
        Echo, batch_size=1, max_staleness=max_staleness, indices=nothing, version=9, stall_s=0.1
    ) as site:
        id = site.store.issue("task", "echo-v0", version=5)
        site.store.start(id)
        site.store.finish(trajectory_of(id, "task", [5, 6, 8]))
        if is_kept:
            assert [trajectory.id for trajectory in await site.take()] == [id]
            assert site.fleet.num_stale == 0
        else:
            with pytest.raises(RolloutStalled):
                await site.take()
            (row,) = site.store.summaries(State.DISCARDED)
            assert (row.id, row.reason) == (id, "stale at version 9")
            assert site.fleet.num_stale == 1


async def test_take_waits_for_an_attempt_that_one_more_update_would_make_too_old() -> None:
    """max_staleness 1: an attempt born at version 0 is trained at 1 at the latest, so the batch at 1 waits for it."""
    make, gates = gated(0)
    async with running(make, batch_size=2, max_staleness=1) as site:
        await site.until(lambda: site.store.counts().ready == 3)  # in whatever order they end, the oldest are taken
        first = await site.take()  # at version 0 there is still time
        assert [trajectory.task_id for trajectory in first] == ["train/1", "train/2"]
        await site.learn(first)
        await site.until(lambda: site.store.counts().ready >= 2)
        taking = asyncio.ensure_future(site.take())
        await asyncio.sleep(0.05)
        assert not taking.done()
        gates["train/0"].set()
        second = await taking
        assert second[0].task_id == "train/0"
        assert site.engine.version - second[0].oldest_version == 1
        assert site.fleet.num_stale == 0


async def test_slow_tasks_are_not_starved() -> None:
    """S3: half the tasks take 1 tick, half 6; with admission and holding the slow half gets at least 45 %."""
    tick_s, updates, batch_size = 0.004, 25, 8

    class Ticking(Echo):
        async def step(self, reply: Message) -> Step:
            await asyncio.sleep(tick_s * (6 if self.task.family == "odd" else 1))
            return await super().step(reply)

    async with running(Ticking, batch_size=batch_size, max_staleness=3) as site:
        slow = 0
        for _ in range(updates):
            batch = await site.take()
            slow += sum(trajectory.family == "odd" for trajectory in batch)
            await asyncio.sleep(tick_s)
            await site.learn(batch)
        assert slow >= 0.45 * updates * batch_size
        assert site.fleet.num_stale == 0


# Groups and retries


async def test_a_group_is_taken_whole_once_its_last_member_has_ended() -> None:
    gate, stepped = asyncio.Event(), itertools.count()

    class ThirdWaits(Echo):
        async def step(self, reply: Message) -> Step:
            if self.task.id == "train/0" and next(stepped) == 2:
                await gate.wait()
            return await super().step(reply)

    async with running(ThirdWaits, batch_size=3, group_size=3, max_staleness=1) as site:
        taking = asyncio.ensure_future(site.take())
        batch = await taking  # the second group overtakes the first, which has an open member
        assert [trajectory.task_id for trajectory in batch] == ["train/1"] * 3
        assert len({trajectory.group_id or trajectory.id for trajectory in batch}) == 1
        gate.set()
        await site.learn(batch)
        assert [trajectory.task_id for trajectory in await site.take()] == ["train/0"] * 3


async def test_a_retried_attempt_keeps_its_slot() -> None:
    """max_staleness 0 and batch = group leave not one slot to spare: the successor must take its predecessor's."""
    failing = itertools.count()

    class Flaky(Echo):
        async def step(self, reply: Message) -> Step:
            if next(failing) < 2:
                raise SandboxFailure("no box")
            return await super().step(reply)

    async with running(Flaky, batch_size=2, group_size=2, max_staleness=0, max_retries=2) as site:
        for _ in range(3):
            batch = await site.take()
            assert len(batch) == 2
            assert len({trajectory.group_id or trajectory.id for trajectory in batch}) == 1
            await site.learn(batch)
        discarded = site.store.summaries(State.DISCARDED)
        assert [row.reason for row in discarded] == ["failed: sandbox"] * 2
        assert {row.task_id for row in discarded} == {"train/0"}


@pytest.mark.parametrize(
    ("failure", "max_retries", "attempts"),
    [(SandboxFailure("no box"), 0, 1), (SandboxFailure("no box"), 2, 3), (EnvFailure("not retryable"), 2, 1)],
)
async def test_retries_are_counted_and_then_given_up(failure: Exception, max_retries: int, attempts: int) -> None:
    class Broken(Echo):
        async def step(self, reply: Message) -> Step:
            if self.task.id == "train/0":
                raise failure
            return await super().step(reply)

    async with running(Broken, batch_size=2, max_retries=max_retries, indices=iter(range(3))) as site:
        assert [trajectory.task_id for trajectory in await site.take()] == ["train/1", "train/2"]
        await site.until(lambda: site.store.counts().discarded == attempts)
        await asyncio.sleep(0.02)
        assert site.store.counts().issued == attempts + 2


def test_a_batch_holds_whole_groups() -> None:
    with pytest.raises(ConfigError, match="batch_size=4 is not a multiple of group_size=3"):
        Fleet(iter(()), None, None, FleetSettings(), batch_size=4, group_size=3)  # type: ignore[arg-type]


# Nothing waits for ever


async def test_a_programming_mistake_comes_out_of_take() -> None:
    class Mistaken(Chat):
        def opening(self, *arguments: Any, **options: Any) -> list[int]:
            raise AssertionError("our own mistake")

    chat = Mistaken(CHAT.tokenizer, "glm47", thinking=False)
    async with running(Echo, batch_size=1, chat=chat) as site:
        with pytest.raises(AssertionError, match="our own mistake"):
            await site.take()


async def test_a_mistake_of_the_user_stops_the_run_with_a_sentence() -> None:
    class Twins(Echo):
        tools = (*Echo.tools, *Echo.tools)

    async with running(Twins, batch_size=1) as site:
        with pytest.raises(ConfigError, match="two tools of the same name"):
            await site.take()


async def test_a_stall_names_who_is_running() -> None:
    """S2: of 3 attempts one never returns; the batch of 3 cannot be filled."""
    make, _ = gated(1)
    async with running(make, batch_size=3, max_staleness=0, stall_s=0.2) as site:
        await site.until(lambda: site.store.counts().ready == 2 and site.fleet.num_live == 1)  # however long that takes
        with pytest.raises(RolloutStalled, match=r"0.2 s; running: t00000002$"):
            await site.take()


async def test_attempts_that_only_fail_are_a_stall_with_the_reason() -> None:
    """Failures are ends, yet no progress: an environment that always breaks does not run for ever."""

    class Broken(Echo):
        async def step(self, reply: Message) -> Step:
            raise EnvFailure("the data set is missing")

    async with running(Broken, batch_size=1, stall_s=0.8) as site, asyncio.timeout(60):
        with pytest.raises(RolloutStalled, match="latest failure: env: the data set is missing"):
            await site.take()


@pytest.mark.parametrize(("every", "stalls"), [(1, True), (3, False)])
async def test_failures_in_a_row_end_the_run_long_before_the_clock(every: int, stalls: bool) -> None:
    """Five in a row are too many; two in a row, then a success, never are."""
    numbers = itertools.count()

    class Failing(Echo):
        async def step(self, reply: Message) -> Step:
            if every == 1 or next(numbers) % every:
                raise EnvFailure("the data set is missing")
            return await super().step(reply)

    options = {"batch_size": 8, "max_live": 1, "max_retries": 0, "max_failures": 5, "stall_s": 60.0}
    async with running(Failing, **options) as site, asyncio.timeout(50):
        if stalls:
            with pytest.raises(
                RolloutStalled, match=r"^\d+ attempts failed in a row; .* env: the data set is missing$"
            ):
                await site.take()
            assert site.store.counts().discarded < 20
        else:
            assert len(await site.take()) == 8


async def test_close_is_quick_though_an_environment_ignores_cancellation() -> None:
    """S2: shutdown takes less than 5 s, whatever an environment does."""
    let_go = asyncio.Event()

    class Stubborn(Echo):
        async def step(self, reply: Message) -> Step:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return await super().step(reply)

    async with running(Stubborn, batch_size=2) as site:
        await site.until(lambda: site.fleet.num_live == 10)
        started = time.monotonic()
        await site.fleet.close()
        assert time.monotonic() - started < 5
        let_go.set()


async def test_the_event_loop_stays_responsive() -> None:
    """S6, loosely: 16 episodes of 8 kB observations compute for less than half a second between two 1 ms timers.

    In seconds of this thread's own, since a loaded machine may let it wait; what waits for something else has ten times
    as long. The garbage of earlier tests is not looked through here.
    """

    class Wordy(Echo):
        async def step(self, reply: Message) -> Step:
            step = await super().step(reply)
            return Step(tuple(Message("tool", "word " * 1_600) for _ in step.observation), step.terminated)

    computed: list[float] = []
    lags: list[float] = []

    async def tick() -> None:
        while True:
            before, own = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.001)
            computed.append(time.thread_time() - own)
            lags.append(time.monotonic() - before - 0.001)

    gc.freeze()
    try:
        ticking = asyncio.ensure_future(tick())
        async with running(Wordy, batch_size=8, max_staleness=0, turns=[LOOK, DONE]) as site:
            for _ in range(2):
                await site.learn(await site.take())
        ticking.cancel()
    finally:
        gc.unfreeze()
    assert len(lags) > 10
    assert max(computed) < 0.5
    assert max(lags) < 5


@pytest.mark.parametrize(("tau", "stale"), [(3, True), (4, False)])
def test_staleness_counts_from_the_oldest_version(tau: int, stale: bool) -> None:
    """4.6: versions (5, 6, 8) at trainer version 9."""
    assert is_stale(min(5, 6, 8), 9, tau) is stale


def test_a_version_from_the_future_is_an_error() -> None:
    """P3: negative staleness raises; a trajectory in which nothing was sampled has no age."""
    with pytest.raises(GlmgymError, match="version 10 reached a trainer that is at 9"):
        is_stale(10, 9, 4)
    assert not is_stale(NO_VERSION, 9, 0)

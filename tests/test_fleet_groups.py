"""Groups of attempts at one task: who has a vote, which groups train, and what happens to those without a signal."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from episodes import Echo
from test_fleet import Site, running

from glmgym.engine import Weights
from glmgym.env import ScoreView, Step
from glmgym.errors import EnvFailure, SandboxFailure
from glmgym.fleet import NoSignal, RolloutStalled
from glmgym.messages import Message
from glmgym.store import State
from glmgym.trajectory import Reward


def scoring(rewards: Callable[[str, int], tuple[Reward, ...] | Exception]) -> type[Echo]:
    """An environment whose k-th attempt at a task gets ``rewards(task id, k)``, or fails with it."""
    attempts: Counter[str] = Counter()

    class Scored(Echo):
        async def score(self, view: ScoreView) -> tuple[Reward, ...]:
            given = rewards(self.task.id, attempts[self.task.id])
            attempts[self.task.id] += 1
            if isinstance(given, Exception):
                raise given
            return given

    return Scored


def _done(value: float) -> tuple[Reward, ...]:
    return (Reward("done", value),)


def _index(task_id: str) -> int:
    return int(task_id.split("/")[1])


async def settled(site: Site, num_groups: int, group_size: int) -> None:
    """Wait until so many groups have ended and are settled: whoever settles the last holds what ``freed`` waits for."""
    counts = site.store.counts
    await site.until(lambda: counts().issued == num_groups * group_size and counts().unfinished == counts().ready)
    await site.until(lambda: site.fleet.num_live == 0)
    await site.fleet.freed()


# Votes


@pytest.mark.parametrize(("valid", "is_kept"), [(4, True), (3, True), (2, False), (1, False), (0, False)])
async def test_a_group_trains_only_with_more_than_half_of_it_valid(valid: int, is_kept: bool) -> None:
    """O5: of 4 attempts, 3 valid train without the failed one; 2, 1 or 0 are dropped and counted."""
    make = scoring(lambda task, k: _done(float(k)) if k < valid else EnvFailure("broken"))
    async with running(make, batch_size=4, group_size=4, indices=iter([0]), stall_s=1.0, max_refill=2) as site:
        await settled(site, 1, 4)
        assert site.fleet.num_dropped == (not is_kept)
        if is_kept:
            batch = await site.take()
            assert sorted(t.outcome.result() for t in batch) == [float(k) for k in range(valid)]
        else:
            assert site.store.counts().ready == 0
            reasons = [row.reason for row in site.store.summaries(State.DISCARDED)]
            assert reasons.count(f"{valid} of 4 attempts are valid") == valid
            assert site.fleet.numbers()["fleet/dropped_groups"] == 1.0


async def test_a_retried_member_has_its_vote() -> None:
    """Two of four fail once in a way that a retry helps: the group is whole."""
    make = scoring(lambda task, k: SandboxFailure("no box") if k < 2 else _done(float(k % 2)))
    async with running(make, batch_size=4, group_size=4, indices=iter([0])) as site:
        assert len(await site.take()) == 4
        assert site.fleet.num_dropped == 0


@pytest.mark.parametrize("dynamic_sampling", [False, True])
async def test_a_member_that_became_too_old_has_no_vote(dynamic_sampling: bool) -> None:
    """A's oldest token is of version 0, B starts anew at version 2 and max_staleness is 1: A goes, then the group."""
    first, second = asyncio.Event(), asyncio.Event()
    attempts = itertools.count()

    class Slow(Echo):
        async def step(self, reply: Message) -> Step:
            number = next(attempts)
            if number == 1:
                await first.wait()
                raise SandboxFailure("no box")
            if number == 2:
                await second.wait()
            return await super().step(reply)

    options: dict[str, Any] = {"max_staleness": 1, "indices": iter([0]), "dynamic_sampling": dynamic_sampling}
    async with running(Slow, batch_size=2, group_size=2, **options) as site:
        await site.until(lambda: site.store.counts().ready == 1)
        await site.engine.switch(Weights(2))
        first.set()
        await site.until(lambda: site.store.counts().issued == 3)
        taking = asyncio.ensure_future(site.take())
        await site.until(lambda: site.fleet.num_stale == 1)
        second.set()
        await site.until(lambda: site.store.counts().discarded == 3)
        assert not taking.done()
        assert site.fleet.num_dropped == 1
        assert site.fleet.num_no_signal == 0
        taking.cancel()
        reasons = sorted(row.reason for row in site.store.summaries(State.DISCARDED))  # either member may have failed
        assert reasons == ["1 of 2 attempts are valid", "failed: sandbox", "stale at version 2"]


async def test_a_group_that_shrinks_while_it_waits_is_dropped_whole() -> None:
    """Versions 0 and 2 in one group: at version 2 with max_staleness 1 the first is too old, one of two is no group."""
    gate = asyncio.Event()
    attempts = itertools.count()

    class Late(Echo):
        async def step(self, reply: Message) -> Step:
            if next(attempts) == 1:
                await gate.wait()
                raise SandboxFailure("no box")
            return await super().step(reply)

    async with running(Late, batch_size=2, group_size=2, max_staleness=1, indices=iter([0]), stall_s=0.2) as site:
        await site.until(lambda: site.store.counts().ready == 1)
        await site.engine.switch(Weights(2))
        gate.set()
        await settled(site, 1, 3)
        assert site.fleet.num_dropped == 0
        with pytest.raises(RolloutStalled, match="no attempt succeeded"):
            await site.take()
        reasons = sorted(row.reason for row in site.store.summaries(State.DISCARDED))  # either member may have failed
        assert reasons == ["1 of 2 attempts are valid", "failed: sandbox", "stale at version 2"]
        assert (site.fleet.num_stale, site.fleet.num_dropped) == (1, 1)


# Signal


def _by_task(task: str, k: int) -> tuple[Reward, ...]:
    """Even tasks have equal outcomes and styles that differ; odd ones the other way round."""
    differs = _index(task) % 2
    return (Reward("done", float(k % 2 and differs)), Reward("style", float(k % 2 and not differs), shaping=True))


@pytest.mark.parametrize("dynamic_sampling", [False, True])
async def test_groups_without_a_signal_are_counted_and_on_request_replaced(dynamic_sampling: bool) -> None:
    """Groups of tasks 0 and 2 differ in style alone: there the totals differ, the outcomes do not."""
    async with running(
        scoring(_by_task), batch_size=4, group_size=2, indices=iter(range(4)), dynamic_sampling=dynamic_sampling
    ) as site:
        await settled(site, 4, 2)
        taken = {trajectory.task_id for trajectory in await site.take()}
        assert taken == ({"train/1", "train/3"} if dynamic_sampling else {"train/0", "train/1"})
        assert site.fleet.num_no_signal == 2
        assert site.fleet.numbers()["fleet/no_signal_groups"] == 2.0
        discarded = [(row.task_id, row.reason) for row in site.store.summaries(State.DISCARDED)]
        lost = [(f"train/{n}", "no signal") for n in (0, 0, 2, 2)]
        assert discarded == (lost if dynamic_sampling else [])


@pytest.mark.parametrize(
    ("outcomes", "has_signal"),
    [
        ((1.0, 1.0, EnvFailure("broken")), False),  # O5: the failed one has no vote; it is no 0 that differs
        ((1.0, 0.0, EnvFailure("broken")), True),
        ((0.1 + 0.2, 0.3, 0.3), False),  # the last bit is no signal
        ((0.3, 0.3, 0.301), True),
    ],
)
async def test_a_signal_is_a_difference_among_valid_outcomes(
    outcomes: tuple[float | Exception, ...], has_signal: bool
) -> None:
    def rewards(task: str, k: int) -> tuple[Reward, ...] | Exception:
        given = outcomes[k]
        return given if isinstance(given, Exception) else _done(given)

    async with running(
        scoring(rewards), batch_size=3, group_size=3, indices=iter([0]), dynamic_sampling=True, max_refill=5
    ) as site:
        await settled(site, 1, 3)
        assert site.fleet.num_no_signal == (not has_signal)
        assert site.store.counts().ready == (sum(isinstance(o, float) for o in outcomes) if has_signal else 0)


async def test_filtering_does_not_shrink_capacity() -> None:
    """S5: three batches' worth of equal rewards, then good tasks: as many attempts are admitted as before."""
    batch_size, group_size, equal_groups = 4, 2, 6

    def rewards(task: str, k: int) -> tuple[Reward, ...]:
        return _done(1.0 if _index(task) < equal_groups else float(k % 2))

    async with running(
        scoring(rewards), batch_size=batch_size, group_size=group_size, max_staleness=1, dynamic_sampling=True
    ) as site:
        capacity, equal = 2 * batch_size, equal_groups * group_size
        await site.until(lambda: (now := site.store.counts()).ready == capacity and now.discarded >= equal)
        await asyncio.sleep(0.05)
        counts = site.store.counts()
        assert (counts.discarded, counts.unfinished) == (equal, capacity)
        for _ in range(3):
            batch = await site.take()
            assert len(batch) == batch_size
            assert {trajectory.outcome.result() for trajectory in batch} == {0.0, 1.0}
            await site.learn(batch)
        await site.until(lambda: site.store.counts().ready == capacity)


@pytest.mark.parametrize(("max_refill", "raises"), [(3, True), (4, False)])
async def test_nothing_but_equal_outcomes_is_an_error_after_max_refill(max_refill: int, raises: bool) -> None:
    """S5: three groups in a row without a signal, then one with it; 3 in a row may not be, 4 never are."""

    def rewards(task: str, k: int) -> tuple[Reward, ...]:
        return _done(float(k % 2) if _index(task) % 4 == 3 else 0.0)

    options: dict[str, Any] = {"batch_size": 4, "group_size": 2, "max_live": 1, "dynamic_sampling": True}
    async with running(scoring(rewards), **options, max_refill=max_refill) as site:
        if raises:
            with pytest.raises(NoSignal, match=r"^3 groups in a row were discarded; every outcome of the latest is 0"):
                await site.take()
        else:
            batch = await site.take()
            assert {trajectory.task_id for trajectory in batch} == {"train/3", "train/7"}
            assert site.fleet.num_no_signal >= 6


async def test_groups_that_are_always_half_broken_end_the_run_too() -> None:
    """Every other attempt succeeds, so nothing stalls; yet no group may train."""
    make = scoring(lambda task, k: _done(1.0) if k % 2 else EnvFailure("the data set is missing"))
    async with running(make, batch_size=2, group_size=2, max_refill=5, max_live=1) as site, asyncio.timeout(60):
        with pytest.raises(NoSignal, match=r"latest, 1 of 2 attempts are valid \(env: .*the data set is missing\)"):
            await site.take()


async def test_equal_outcomes_that_are_kept_are_no_error() -> None:
    make = scoring(lambda task, k: _done(0.0))
    async with running(make, batch_size=2, group_size=2, max_refill=2) as site:
        for _ in range(4):
            await site.learn(await site.take())
        assert site.fleet.num_no_signal >= 4

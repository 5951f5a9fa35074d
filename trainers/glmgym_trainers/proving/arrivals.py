"""Simulated time: when attempts of heavy-tailed length end, and which of them an update gets, under three regimes.

Latencies are drawn beforehand and do not depend on what an episode says, so the whole schedule is known before any
training, and attempt ``i`` takes equally long in every regime. An attempt is sampled by the version that is current
when it starts; an update takes no time except where all wait for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Attempt:
    index: int  # its place in the order of starts, and in the list of latencies
    version: int  # updates made before it started


@dataclass(frozen=True, slots=True)
class Update:
    """The attempts that make up one batch, and the simulated time at which it is complete."""

    time: float
    attempts: tuple[Attempt, ...]


def latencies(count: int, *, sigma: float, seed: int) -> NDArray[np.float64]:
    """[count] log-normal times with median 1; the mean is ``exp(sigma**2 / 2)``."""
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(count))


def on_completion(times: NDArray[np.float64], *, slots: int, batch_size: int, group_size: int = 1) -> Iterator[Update]:
    """A slot that ends its attempt starts the next one; groups train once all of their members have ended.

    With a group size of 1 every attempt may train as it ends. Ends when the latencies are used up.

    Raises:
        ValueError: a batch is not made of whole groups.
    """
    if batch_size % group_size:
        raise ValueError(f"a batch of {batch_size} cannot be made of groups of {group_size}")
    version = 0
    running = [(times[index], index) for index in range(slots)]
    heapq.heapify(running)
    started = {index: Attempt(index, version) for index in range(slots)}
    ended: dict[int, list[Attempt]] = {}  # by group
    ready: list[Attempt] = []
    for following in range(slots, len(times)):
        now, index = heapq.heappop(running)
        members = ended.setdefault(index // group_size, [])
        members.append(started.pop(index))
        if len(members) == group_size:
            ready += ended.pop(index // group_size)
        if len(ready) >= batch_size:
            yield Update(float(now), tuple(ready[:batch_size]))
            ready = ready[batch_size:]
            version += 1
        started[following] = Attempt(following, version)
        heapq.heappush(running, (now + times[following], following))


def in_step(times: NDArray[np.float64], *, batch_size: int, update_time: float) -> Iterator[Update]:
    """Start a batch, wait for its last attempt, train, start the next. Ends when the latencies are used up."""
    now = 0.0
    for version in range(len(times) // batch_size):
        first = version * batch_size
        indices = range(first, first + batch_size)
        now += float(times[first : first + batch_size].max())
        yield Update(now, tuple(Attempt(index, version) for index in indices))
        now += update_time

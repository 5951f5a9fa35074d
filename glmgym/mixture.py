"""Several environments in one run: how much of each, and in which order their tasks come.

Owned here: the order. It is fixed by the seed and by how many tasks came before, so that a resumed run goes on where it
stopped, in every process alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glmgym.errors import ConfigError
from glmgym.registry import EnvSpec, find_environment


@dataclass(frozen=True, slots=True)
class Source:
    """An environment and its share of the tasks."""

    spec: EnvSpec
    share: float


def find_sources(shares: Mapping[str, float]) -> tuple[Source, ...]:
    """The environments of a mixture, by id or path; shares are made to add up to 1.

    Raises:
        ConfigError: there is none, one is unknown, stands twice or has no training tasks, or a share is not above 0.
    """
    if not shares:
        raise ConfigError('no environment: give [env] id = "my_env-v0", or [env.mix] with a share for each of several')
    for name, share in shares.items():
        if not share > 0:
            raise ConfigError(f"[env.mix] {name} = {share}: a share must be above 0; leave the environment out instead")
    specs = [find_environment(name) for name in shares]
    if len({spec.id for spec in specs}) < len(specs):
        raise ConfigError(f"[env.mix] names an environment twice: {', '.join(spec.id for spec in specs)}")
    for spec in specs:
        if spec.tasks.size("train") == 0:
            raise ConfigError(f"{spec.id} has no tasks to train on ({spec.description})")
    total = sum(shares.values())
    return tuple(Source(spec, share / total) for spec, share in zip(specs, shares.values(), strict=True))


def task_stream(sources: Sequence[Source], seed: int, *, skip: int = 0) -> Iterator[tuple[EnvSpec, int]]:
    """Training tasks without end, from the ``skip``-th on: an environment and an index of its training split.

    The environment furthest below its share comes next, so any stretch of tasks holds each in its share to within one.
    Every index of a split comes once per pass, in an order fixed by the seed.
    """
    counts = [0] * len(sources)
    orders = [_indices(source.spec.tasks.size("train"), seed) for source in sources]
    for number in itertools.count():
        behind = [source.share * (number + 1) - count for source, count in zip(sources, counts, strict=True)]
        chosen = behind.index(max(behind))
        counts[chosen] += 1
        index = next(orders[chosen])
        if number >= skip:
            yield sources[chosen].spec, index


def _indices(size: int, seed: int) -> Iterator[int]:
    for number in itertools.count():
        yield from (int(index) for index in np.random.default_rng([seed, number]).permutation(size))

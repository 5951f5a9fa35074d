"""Tasks of several environments in one stream: shares, order, and going on where a run stopped."""

from __future__ import annotations

import itertools

import pytest
from episodes import Echo
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym import registry
from glmgym.env import Split, Task
from glmgym.errors import ConfigError
from glmgym.mixture import Source, find_sources, task_stream
from glmgym.registry import EnvSpec


class Numbered:
    """As many tasks as told."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self, split: Split) -> int:
        return self._size

    def task(self, split: Split, index: int) -> Task:
        return Task(id=str(index))


def source(name: str, share: float, size: int = 5) -> Source:
    return Source(EnvSpec(name, Echo, Numbered(size)), share)


def taken(sources: list[Source], n: int, *, seed: int = 0, skip: int = 0) -> list[tuple[str, int]]:
    return [(spec.id, index) for spec, index in itertools.islice(task_stream(sources, seed, skip=skip), n)]


def test_every_stretch_holds_each_environment_in_its_share() -> None:
    """Shares of 3/4 and 1/4: a, a or b, ..., and after any n tasks no more than one off."""
    names = [name for name, _ in taken([source("a-v0", 0.75), source("b-v0", 0.25)], 40)]
    assert names[:4].count("a-v0") == 3
    assert names.count("a-v0") == 30
    assert all(abs(names[:n].count("a-v0") - 0.75 * n) <= 1 for n in range(41))


def test_a_split_is_passed_over_whole_before_it_starts_again() -> None:
    indices = [index for _, index in taken([source("a-v0", 1.0)], 10)]
    assert sorted(indices[:5]) == sorted(indices[5:]) == [0, 1, 2, 3, 4]
    assert indices[:5] != indices[5:]
    assert indices != [index for _, index in taken([source("a-v0", 1.0)], 10, seed=1)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_stream_goes_on_where_it_stopped(skip: int, weights: list[int]) -> None:
    sources = [source(f"e{k}-v0", weight / sum(weights), 3 + k) for k, weight in enumerate(weights)]
    assert taken(sources, 20, skip=skip) == taken(sources, skip + 20)[skip:]


def test_a_mixture_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no environment"):
        find_sources({})
    with pytest.raises(ConfigError, match=r"terminal-basics-v0 = 0.0: a share must be above 0"):
        find_sources({"terminal-basics-v0": 0.0})
    with pytest.raises(ConfigError, match="names an environment twice"):
        find_sources({"terminal-basics-v0": 1.0, "terminal-basics": 1.0})
    registry.register("nothing-to-train-v0", Echo, tasks=Numbered(0), description="Build it first.")
    with pytest.raises(ConfigError, match=r"nothing-to-train-v0 has no tasks to train on \(Build it first\.\)"):
        find_sources({"terminal-basics-v0": 3, "nothing-to-train": 1})
    found = find_sources({"terminal-basics-v0": 3, "reasoning-basics-v0": 1})
    assert [(each.spec.id, each.share) for each in found] == [
        ("terminal-basics-v0", 0.75),
        ("reasoning-basics-v0", 0.25),
    ]

"""``terminal-mini-v0``: terminal work on real material as Harbor task directories, one end state each. Owns ``tasks/``.

Every directory runs on the image ``base``, without a network. Nothing is read before the suite is used, so that listing
environments needs neither the tasks nor the image.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from glmgym.env import Env, Split, Task
from glmgym.messages import Message
from glmgym.registry import EnvSpec, register
from glmgym.sandbox import BoxSpec
from glmgym_envs.harbor import spec_of, task_directories, task_set
from glmgym_envs.harbor.suite import HarborTasks

__all__ = ["TASKS", "TERMINAL_MINI"]

TASKS = Path(__file__).parent / "tasks"
ID = "terminal-mini-v0"
MAX_TURNS = 60


class _Tasks:
    """Read on first use. Both splits hold all of them, as with any directory of tasks without a choice of its own."""

    def size(self, split: Split) -> int:
        return _tasks().size(split)

    def task(self, split: Split, index: int) -> Task:
        return _tasks().task(split, index)


@cache
def _tasks() -> HarborTasks:
    return task_set(task_directories(TASKS))


@cache
def _suite() -> EnvSpec:
    return spec_of(TASKS, ID)


def _make() -> Env:
    return _suite().make()


def _box(task: Task) -> BoxSpec:
    spec = _suite().box_of(task)
    assert spec is not None
    return spec


def _oracle(task: Task) -> list[Message]:
    oracle = _suite().oracle
    assert oracle is not None
    return list(oracle(task))


TERMINAL_MINI = register(
    ID,
    _make,
    tasks=_Tasks(),
    box=_box,
    oracle=_oracle,
    max_turns=MAX_TURNS,
    description="Git, logs, databases, archives, processes and more in a real shell; hidden tests decide.",
)

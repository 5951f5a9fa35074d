"""Task sets drawn from a random generator: the same in every process, train and held-out never overlapping."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from glmgym.env import Split, Task
from glmgym.errors import ConfigError

_ATTEMPTS = 200  # draws for one task before its content space counts as exhausted


def procedural(make: Callable[[random.Random], Task], *, train: int, heldout: int, name: str) -> ProceduralTasks:
    """A task set that draws task ``i`` of a split from a generator seeded by ``name``, the split and ``i``.

    Args:
        make: draws one task; everything random in it must come from the generator it is given.
        train: number of training tasks; they are made on demand, so a large number costs nothing.
        heldout: number of held-out tasks; all are made on first use, so that no training task can repeat one.
        name: part of every seed and task id; a new name is a new task set.

    Raises:
        ConfigError: a size is negative.
    """
    if train < 0 or heldout < 0:
        raise ConfigError(f"task set {name!r}: train={train} and heldout={heldout} must not be negative")
    return ProceduralTasks(make, train, heldout, name)


class ProceduralTasks:
    """Held-out tasks are distinct in content (instruction and data), and no training task has the content of one."""

    def __init__(self, make: Callable[[random.Random], Task], train: int, heldout: int, name: str) -> None:
        self.name = name
        self._make = make
        self._sizes: dict[Split, int] = {"train": train, "heldout": heldout}

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def task(self, split: Split, index: int) -> Task:
        """Task ``index`` of a split.

        Raises:
            IndexError: ``index`` is not in ``range(size(split))``.
            ConfigError: ``make`` repeats itself so much that no new task was found.
        """
        if not 0 <= index < self._sizes[split]:
            raise IndexError(f"task {index} of {self.name}/{split}: there are {self._sizes[split]}")
        if split == "heldout":
            return self._heldout[0][index]
        return self._draw(split, index, self._heldout[1])[0]

    @cached_property
    def _heldout(self) -> tuple[list[Task], set[bytes]]:
        tasks: list[Task] = []
        contents: set[bytes] = set()
        for index in range(self._sizes["heldout"]):
            task, content = self._draw("heldout", index, contents)
            tasks.append(task)
            contents.add(content)
        return tasks, contents

    def _draw(self, split: Split, index: int, taken: set[bytes]) -> tuple[Task, bytes]:
        for attempt in range(_ATTEMPTS):
            # hash() differs between processes; a digest does not.
            seed = hashlib.sha256(f"{self.name}/{split}/{index}/{attempt}".encode()).digest()
            task = self._make(random.Random(int.from_bytes(seed)))
            content = _content(task)
            if content not in taken:
                return replace(task, id=f"{self.name}/{split}/{index}"), content
        raise ConfigError(
            f"task set {self.name!r}: {_ATTEMPTS} draws for {split} task {index} gave nothing that is not held out "
            f"already; make() has too few different tasks for heldout={self._sizes['heldout']}"
        )


def _content(task: Task) -> bytes:
    text = json.dumps([task.instruction, task.data], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()

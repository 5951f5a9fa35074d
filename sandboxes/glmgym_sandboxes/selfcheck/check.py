"""What a check is: a coroutine that drives boxes of one backend and raises ``Unmet`` where they break the contract.

Owns the vocabulary of the suite (``Check``, ``Subject``, the two ways to stop early) and the few expectations that the
checks are written with. Plain ``assert`` would vanish under ``python -O`` and could not say what was expected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from glmgym.errors import SandboxFailure
from glmgym.sandbox import BoxSpec, Limits, Network, Sandbox

T = TypeVar("T")
OpenBox = Callable[[BoxSpec], Awaitable[Sandbox]]

_IDS = re.compile(r"((?:[A-Z]\d+|hazard \d+)(?:, (?:[A-Z]\d+|hazard \d+))*)(?:: |$)")
_SHOWN = 300  # characters of a value in a message


class Unmet(SandboxFailure):
    """The backend did something else than it owes: what was expected, and what was seen."""

    retryable = False

    def __init__(self, expected: str, seen: object) -> None:
        self.expected, self.seen = expected, shortened(seen)
        super().__init__(f"expected {self.expected}, saw {self.seen}")


class NotApplicable(SandboxFailure):
    """The check says nothing about this backend, image or machine; the message is why."""

    retryable = False


class Subject:
    """The backend under examination: opens its boxes, all of ``image``, and ends all of it when the check is over."""

    def __init__(self, open_box: OpenBox, *, image: str = "") -> None:
        self._open_box = open_box
        self._image = image
        self._boxes: list[Sandbox] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def open(
        self,
        *,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/work",
        user: str = "",
        writable_root: bool = False,
        network: Network | None = None,
    ) -> Sandbox:
        spec = BoxSpec(self._image, cwd, env or {}, limits or Limits(), user, writable_root, network or Network())
        box = await self._open_box(spec)
        self._boxes.append(box)
        return box

    async def fork(self, box: Sandbox, count: int) -> list[Sandbox]:
        siblings = await box.fork(count)
        self._boxes += siblings
        return siblings

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something in a box meanwhile."""
        self._tasks.append(task := asyncio.create_task(work))
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(box.close() for box in self._boxes))


Body = Callable[[Subject], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule of the contract. ``says`` and ``proves`` come from the docstring of the coroutine ``body``.

    ``proves`` holds ids of field cases ("X3") and hazards ("hazard 14"), see docs/field_cases.md.
    """

    name: str
    theme: str
    says: str
    body: Body = field(repr=False)
    proves: tuple[str, ...] = ()
    runs_commands: bool = True  # False: holds for a box that only keeps files, too


def check(theme: str, *, runs_commands: bool = True) -> Callable[[Body], Check]:
    """Make a check of a coroutine function whose docstring is ``"ID, ID: sentence"`` or ``"Sentence"``."""

    def make(body: Body) -> Check:
        says = " ".join((body.__doc__ or "").split())
        proves: tuple[str, ...] = ()
        if found := _IDS.match(says):
            proves, says = tuple(found[1].split(", ")), says[found.end() :]
        name: str = getattr(body, "__name__")  # noqa: B009  Callable has none
        return Check(name, theme, says[:1].upper() + says[1:], body, proves, runs_commands)

    return make


def equal(seen: Any, expected: Any, what: str) -> None:
    """Raises Unmet: ``what`` is not as expected."""
    if seen != expected:
        raise Unmet(f"{what} to be {shortened(expected)}", seen)


def holds(condition: bool, expected: str, seen: object) -> None:
    """Raises Unmet: the condition does not hold."""
    if not condition:
        raise Unmet(expected, seen)


@contextmanager
def refused(kind: type[SandboxFailure], naming: str) -> Iterator[None]:
    """What is inside must raise ``kind``, with ``naming`` in its message.

    Raises:
        Unmet: it passed, or raised another sandbox failure, or one that does not name it.
    """
    expected = f"{kind.__name__} naming {naming!r}"
    try:
        yield
    except SandboxFailure as failure:
        if isinstance(failure, Unmet | NotApplicable):
            raise
        if not isinstance(failure, kind) or naming not in str(failure):
            raise Unmet(expected, f"{type(failure).__name__}: {failure}") from failure
    else:
        raise Unmet(expected, "no error")


def shortened(value: object) -> str:
    """The value as a short line: its middle is left out when it is long."""
    text = value if isinstance(value, str) else repr(value)
    half = _SHOWN // 2
    return text if len(text) <= _SHOWN else f"{text[:half]} ... {text[-half:]} ({len(text)} characters)"

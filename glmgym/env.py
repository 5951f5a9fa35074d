"""The contract of an environment: messages in, messages out. An environment never sees a token id and is used once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from glmgym.messages import Message, ToolSpec
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym.trajectory import Reward

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. ``data`` is plain JSON that the environment understands; the policy sees only what ``reset`` shows.

    A procedural task set gives each task its ``id``. ``wall_s`` and ``score_s`` are the seconds that the policy and the
    grading of this task have; ``None`` leaves them to the run's ``Budget``.
    """

    id: str = ""
    instruction: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    domain: str = ""
    wall_s: float | None = None
    score_s: float | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What the policy sees first. ``volatile`` names files in the box whose content two resets may not share (pids)."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    volatile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer. ``terminated``: the episode is over by its own rule; ``truncated``: cut short."""

    observation: tuple[Message, ...] = ()
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class OpenBox(Protocol):
    """A fresh box for grading: of the task's own kind, or of another."""

    async def __call__(self, spec: BoxSpec | None = None) -> Sandbox: ...


@dataclass(frozen=True, slots=True)
class ScoreView:
    """What a scorer may look at: the task, the transcript, the policy's box, and a way to open a fresh one.

    ``box`` is ``None`` for environments registered without a box. Boxes from ``open_box`` are closed by the caller of
    ``score``.
    """

    task: Task
    messages: tuple[Message, ...]
    box: Sandbox | None
    open_box: OpenBox

    @property
    def answer(self) -> str:
        """The content of the last assistant message, stripped; "" if it called tools instead of answering."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return "" if message.tool_calls else message.content.strip()
        return ""


class Env(Protocol):
    """One episode. ``box`` is ``None`` for environments registered without one."""

    async def reset(self, task: Task, box: Sandbox | None) -> Opening: ...

    async def step(self, reply: Message) -> Step: ...

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """Grade the episode. A scorer that cannot tell raises: that is a Failure, never a reward of 0."""
        ...


class TaskSet(Protocol):
    """Tasks by split and index, the same in every process. Train and held-out tasks are disjoint."""

    def size(self, split: Split) -> int: ...

    def task(self, split: Split, index: int) -> Task:
        """Raises IndexError: ``index`` is not in ``range(size(split))``."""
        ...


Oracle = Callable[[Task], Sequence[Message]]  # assistant turns that solve the task, played in order

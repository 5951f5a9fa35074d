"""One episode on messages: a box, an environment, its steps and its grade, without tokens or an engine."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from glmgym.env import Env, Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError, EnvFailure, SandboxFailure, ScorerFailure, boundary
from glmgym.messages import Message
from glmgym.registry import EnvSpec
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider
from glmgym.trajectory import Reward


class Episode:
    """``reset`` once, ``step`` until it is over, ``score`` once; ``close``, or leaving a ``with``, closes its boxes.

    Every failure is attributed: these methods raise ``BoundaryFailure``, and ``ConfigError`` where a box is needed and
    there is no provider.
    """

    def __init__(self, spec: EnvSpec, task: Task, provider: SandboxProvider | None) -> None:
        self.spec, self.task = spec, task
        self.box: Sandbox | None = None
        self.messages: list[Message] = []
        self._provider = provider
        self._env: Env | None = None
        self._boxes: list[Sandbox] = []

    async def reset(self) -> Opening:
        """Open the box of the task and show the task."""
        if self.spec.box_of(self.task) is not None:
            self.box = await self._open()
        with boundary(EnvFailure, "reset"):
            self._env = self.spec.make()
            opening = await self._env.reset(self.task, self.box)
        self.messages = list(opening.messages)
        return opening

    async def step(self, reply: Message) -> Step:
        """The environment's answer to an assistant message; both are kept in ``messages``."""
        assert self._env is not None, "reset comes first"
        self.messages.append(reply)
        with boundary(EnvFailure, "step"):
            step = await self._env.step(reply)
        self.messages += step.observation
        return step

    async def score(self) -> tuple[Reward, ...]:
        """The environment's rewards; boxes that the scorer opens are closed with the episode."""
        assert self._env is not None, "reset comes first"
        with boundary(ScorerFailure, "score"):
            return await self._env.score(ScoreView(self.task, tuple(self.messages), self.box, self._open))

    async def close(self) -> None:
        boxes, self._boxes = self._boxes, []
        for box in boxes:
            await box.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self, spec: BoxSpec | None = None) -> Sandbox:
        if self._provider is None:
            raise ConfigError(f"{self.spec.id} asks for a box, but none can be opened")
        with boundary(SandboxFailure, f"open a box of {self._provider.name}"):
            box = await self._provider.open(spec or self.spec.box_of(self.task) or BoxSpec())
        self._boxes.append(box)
        return box

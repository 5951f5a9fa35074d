"""``ToolEnv``: the usual environment. A system prompt, some tools, and a ``score``; the loop over calls lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError, did_you_mean
from glmgym.guard import Blocked, Guard
from glmgym.messages import Message, ToolCall, system, tool_result, user
from glmgym.sandbox import Sandbox
from glmgym.tool import Tool, ToolResult
from glmgym.trajectory import Reward


class ToolEnv(ABC):
    """Base class of environments whose policy works through tools and ends with a message that calls none.

    A subclass sets ``tools`` and ``system`` and writes ``score``; ``self.task`` and ``self.box`` are there from
    ``reset`` on. Tools may be plain functions or methods of the subclass.
    """

    tools: Sequence[Tool] = ()
    system: str = ""
    max_observation_chars: int = 8_000  # kept of each tool output: half from its head, half from its tail
    guard: Guard | None = None  # what the policy may not do; see there

    task: Task
    box: Sandbox | None

    def opening(self, task: Task) -> str:
        """The first user message."""
        return task.instruction

    @abstractmethod
    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """Grade the episode; raise when it cannot be graded."""

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Show the task.

        Raises:
            ConfigError: a tool wants a box and the environment is registered without one, or two tools share a name.
        """
        self.task, self.box = task, box
        self._tools = {tool.spec.name: tool.bind(self) for tool in self.tools}
        if len(self._tools) != len(self.tools):
            raise ConfigError(f"{type(self).__name__} has two tools of the same name")
        for name, tool in self._tools.items():
            if box is None and "box" in tool.injected:
                raise ConfigError(f"tool {name!r} wants a box: register the environment with box=BoxSpec()")
        first = (system(self.system),) if self.system else ()
        return Opening((*first, user(self.opening(task))), tuple(tool.spec for tool in self._tools.values()))

    async def step(self, reply: Message) -> Step:
        """Run the calls of one reply in order; a reply without calls is the final answer.

        A call that is malformed, unknown or refused is answered like any other, with its own id and a text that starts
        with ``error:``; ``info["failed_calls"]`` counts them. What the guard blocks is not run: it is answered with the
        guard's dummy observation, and ``info["guarded"]`` lists it.
        """
        if not reply.tool_calls:
            return Step(terminated=True)
        blocked: list[Blocked] = []
        results = [await self._answer(call, blocked) for call in reply.tool_calls]
        texts = [_clip(r.text if r.ok else f"error: {r.text}", self.max_observation_chars) for r in results]
        observation = tuple(tool_result(call, text) for call, text in zip(reply.tool_calls, texts, strict=True))
        guarded = {"guarded": [each.as_dict() for each in blocked]} if blocked else {}
        return Step(observation, info={"failed_calls": sum(not result.ok for result in results), **guarded})

    async def _answer(self, call: ToolCall, blocked: list[Blocked]) -> ToolResult:
        if call.error is not None:
            return ToolResult(call.error, ok=False)
        if self.guard is not None and (found := await self.guard.check(call)) is not None:
            blocked.append(found)
            return ToolResult(self.guard.refusal)
        if call.name not in self._tools:
            return ToolResult(f"unknown tool {call.name!r}{did_you_mean(call.name, self._tools)}", ok=False)
        return await self._tools[call.name](call.arguments, self.box)


def _clip(text: str, limit: int) -> str:
    cut = len(text) - limit
    if cut <= 0:
        return text
    head = (limit + 1) // 2
    return f"{text[:head]}\n[... {cut} characters cut ...]\n{text[head + cut :]}"

"""One episode as Gymnasium counts it, on the event loop: steps with rewards, ends, and what ``info`` says of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from glmgym.env import Task
from glmgym.episode import Episode
from glmgym.errors import BoundaryFailure
from glmgym.gym.actions import read_action
from glmgym.messages import Message
from glmgym.registry import EnvSpec
from glmgym.sandbox import SandboxProvider
from glmgym.trajectory import Failure, Reward

DEFAULT_WALL_S, DEFAULT_SCORE_S = 120.0, 60.0  # of a task that names no time of its own


@dataclass(frozen=True, slots=True)
class Answer:
    """What one step gave. ``text`` shows the new messages; ``failure`` is what broke, if anything did."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    failure: BoundaryFailure | None = None


class Session:
    """``reset`` once, then ``step`` until it is over. Limits are turns and seconds; both truncate, and are graded."""

    def __init__(self, spec: EnvSpec, task: Task, provider: SandboxProvider | None, max_turns: int | None) -> None:
        self._episode = Episode(spec, task, provider)
        self._task = task
        self._max_turns = max_turns or spec.max_turns
        self._wall_s = task.wall_s or DEFAULT_WALL_S
        self._deadline = 0.0
        self._turn = 0

    async def reset(self) -> tuple[str, dict[str, Any]]:
        """Raises BoundaryFailure: the box or the environment broke; TimeoutError: it took longer than the task has."""
        async with asyncio.timeout(self._wall_s):
            opening = await self._episode.reset()
        self._deadline = time.monotonic() + self._wall_s
        box = self._episode.box
        info = {
            "task_id": self._task.id,
            "task_hash": task_hash(self._task),
            "instruction": self._task.instruction,
            "tools": [tool.to_openai() for tool in opening.tools],
            "limits": {"max_turns": self._max_turns, "wall_s": self._wall_s},
            "image_digest": box.image_digest if box is not None else "",
            "messages": [message.to_openai() for message in opening.messages],
        }
        return render(opening.messages), info

    async def step(self, action: str) -> Answer:
        """Play one assistant message. What breaks ends the episode without a valid reward, and is no exception."""
        self._turn += 1
        began = time.monotonic()
        try:
            return await self._step(action, began)
        except BoundaryFailure as failure:
            record = Failure.of(failure)
            error = {"class": record.type, "origin": record.origin, "message": record.message}
            info = {"turn": self._turn, "error": {**error, "retryable": record.retryable}, "reward_valid": False}
            return Answer("", truncated=True, info={**info, "stop_reason": "failed"}, failure=failure)

    async def close(self) -> None:
        await self._episode.close()

    async def _step(self, action: str, began: float) -> Answer:
        step, limit = None, ""
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, self._deadline - began)):
                step = await self._episode.step(read_action(action, self._turn))
        except TimeoutError:
            limit = "wall_s"
        terminated = step is not None and step.terminated
        if not (terminated or limit) and ((step is not None and step.truncated) or self._turn >= self._max_turns):
            limit = "max_turns"
        new = step.observation if step is not None else ()
        info: dict[str, Any] = {
            "turn": self._turn,
            "messages": [message.to_openai() for message in new],
            "tool_results": [{"id": each.tool_call_id, "content": each.content} for each in new if each.role == "tool"],
            "limit_hit": limit,
            **({"env": dict(step.info)} if step is not None else {}),
        }
        if not (terminated or limit):
            return Answer(render(new), info=info)
        async with asyncio.timeout(self._task.score_s or DEFAULT_SCORE_S):
            rewards = await self._episode.score()
        info |= {
            "reward_components": {reward.name: reward.value for reward in rewards},
            "rewards": [asdict(reward) for reward in rewards],
            "reward_valid": True,
            "stop_reason": limit or "done",
        }
        return Answer(render(new), _total(rewards), terminated, not terminated, info)


def render(messages: Sequence[Message]) -> str:
    """Messages as a person reads them."""
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def task_hash(task: Task) -> str:
    """What a task asks, as a digest: the same in every process."""
    content = json.dumps([task.instruction, task.data], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _total(rewards: Sequence[Reward]) -> float:
    return sum(reward.weight * reward.value for reward in rewards)

"""Any registered environment as a ``gymnasium.Env``: texts in, texts out, one action a turn."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping
from typing import Any, cast

import gymnasium

from glmgym.env import Split
from glmgym.gym.loop import LOOP
from glmgym.gym.session import Session
from glmgym.gym.spaces import Unicode
from glmgym.registry import EnvSpec, find_environment

OPTIONS = ("index", "split", "task_id")


class GlmEnv(gymnasium.Env[str, str]):
    """An observation is the text of the new messages; an action is JSON of tool calls, or the final answer.

    ``info`` holds what the text leaves out: on ``reset`` the task, its tools and limits; on the last step the reward
    components. ``terminated`` says that the environment's own rule ended the episode, ``truncated`` that a limit did or
    that something broke: then ``info["error"]`` says what, and ``info["reward_valid"]`` is False.

    Args:
        suite: an environment's id, or the path of an environment file or directory of tasks.
        split: which tasks; ``reset(options={"split": ...})`` chooses anew.
        task: index of the only task; ``None`` draws one at each reset, by the seed.
        sandbox: name of the sandbox backend, for environments that need boxes.
        max_turns: ``None`` takes the environment's own limit.
        strict: raise what breaks instead of truncating.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as every gymnasium environment has it

    def __init__(
        self,
        suite: str,
        *,
        split: Split = "train",
        task: int | None = None,
        sandbox: str = "bubblewrap",
        max_turns: int | None = None,
        strict: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.render_mode = render_mode
        self._source: EnvSpec = find_environment(suite)
        self._split: Split = split
        self._task = task
        self._sandbox = sandbox
        self._max_turns = max_turns
        self._strict = strict
        self._session: Session | None = None
        self._shown = ""
        self._closed = False
        LOOP.hold()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Raises:
            ValueError: an option is unknown, or names no task.
            BoundaryFailure: the box or the environment broke.
        """
        return LOOP.run(self.begin(seed, options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One assistant message.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode, or it is over.
            BoundaryFailure: what broke, if ``strict``.
        """
        return LOOP.run(self.play(action))

    async def begin(self, seed: int | None, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
        """``reset``, on the loop."""
        if self._closed:
            raise gymnasium.error.ClosedEnvironmentError("this environment is closed: make another")
        super().reset(seed=seed)
        split, index = await asyncio.to_thread(
            self._choose, dict(options or {})
        )  # a look through all tasks may be long
        await self._end()
        task = await asyncio.to_thread(self._source.tasks.task, split, index)
        provider = await LOOP.provider(self._sandbox) if self._source.box is not None else None
        self._session = Session(self._source, task, provider, self._max_turns)
        try:
            self._shown, info = await self._session.reset()
        except BaseException:
            await self._end()
            raise
        digest = info.pop("image_digest")
        sandbox = {"backend": self._sandbox if digest else "", "image_digest": digest}
        return self._shown, {**info, "sandbox": sandbox, "split": split, "index": index, "seed": seed}

    async def play(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """``step``, on the loop."""
        if self._session is None:
            raise gymnasium.error.ResetNeeded("call reset() first: there is no episode, or it is over")
        answer = await self._session.step(action)
        if answer.terminated or answer.truncated:
            await self._end()
        if answer.failure is not None and self._strict:
            raise answer.failure
        self._shown = answer.text
        return answer.text, answer.reward, answer.terminated, answer.truncated, answer.info

    def render(self) -> str | None:
        """The last observation."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the episode's boxes; may be called twice."""
        if not self._closed:
            self._closed = True
            LOOP.run(self._end())
            LOOP.release()

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
            said = f"{type(self).__name__} was dropped without close(): its box lives on"
            warnings.warn(said, ResourceWarning, stacklevel=2)

    def _choose(self, options: dict[str, Any]) -> tuple[Split, int]:
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise ValueError(f"reset: unknown option {unknown[0]!r}; known: {', '.join(OPTIONS)}")
        split = cast(Split, options.get("split", self._split))
        if split not in ("train", "heldout"):
            raise ValueError(f"reset: split {split!r}: use 'train' or 'heldout'")
        size = self._source.tasks.size(split)
        if size == 0:
            raise ValueError(f"{self._source.id} has no {split} tasks: {self._source.description}")
        if "task_id" in options:
            return split, self._index_of(split, str(options["task_id"]), size)
        index = options.get("index", self._task)
        if index is None:
            return split, int(self.np_random.integers(size))
        if not 0 <= index < size:
            raise ValueError(f"reset: index {index}: {self._source.id} has {size} {split} tasks")
        return split, int(index)

    def _index_of(self, split: Split, id: str, size: int) -> int:
        found = next((i for i in range(size) if self._source.tasks.task(split, i).id == id), None)
        if found is None:
            raise ValueError(f"reset: {self._source.id} has no {split} task {id!r}")
        return found

    async def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

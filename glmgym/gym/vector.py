"""Many episodes at once on one event loop, as a ``gymnasium.vector.VectorEnv``. Ended ones are reset only when told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from glmgym.gym.env import GlmEnv
from glmgym.gym.loop import LOOP


class GlmVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray]):
    """``num_envs`` environments whose boxes and steps run side by side; observations and actions are tuples of texts.

    Autoreset is off: an episode here costs minutes, and none of its steps may be thrown away. Reset ended ones with
    ``reset(options={"reset_mask": mask})``, True where wanted; stepping an ended one is an error.

    Args:
        num_envs: how many.
        options: see ``GlmEnv``.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        self.num_envs = num_envs
        self.envs = [GlmEnv(**options) for _ in range(num_envs)]
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shown = [""] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Reset all, or those of ``options["reset_mask"]``. An ``int`` seed is counted up over the environments."""
        given = dict(options or {})
        mask = np.asarray(given.pop("reset_mask", np.ones(self.num_envs, dtype=bool)), dtype=bool)
        seeds = seed if isinstance(seed, Sequence) else [seed if seed is None else seed + i for i in range(len(mask))]

        async def all_of_them() -> list[tuple[str, dict[str, Any]] | None]:
            each = (
                env.begin(env_seed, given) if wanted else _nothing()
                for env, env_seed, wanted in zip(self.envs, seeds, mask, strict=True)
            )
            return await asyncio.gather(*each)

        infos: dict[str, Any] = {}
        for i, found in enumerate(LOOP.run(all_of_them())):
            if found is not None:
                self._shown[i] = found[0]
                infos = self._add_info(infos, found[1], i)
        return tuple(self._shown), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One action each.

        Raises:
            ValueError: not as many actions as environments.
            gymnasium.error.ResetNeeded: one of them is over.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"step: {len(actions)} actions for {self.num_envs} environments")

        async def all_of_them() -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
            return await asyncio.gather(*(env.play(action) for env, action in zip(self.envs, actions, strict=True)))

        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        infos: dict[str, Any] = {}
        for i, result in enumerate(LOOP.run(all_of_them())):
            self._shown[i], rewards[i], terminated[i], truncated[i], info = result
            infos = self._add_info(infos, info, i)
        return tuple(self._shown), rewards, terminated, truncated, infos

    def render(self) -> tuple[str, ...] | None:
        return tuple(self._shown) if self.render_mode == "ansi" else None

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()


async def _nothing() -> None:
    return None

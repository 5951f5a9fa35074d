"""Who plays an evaluation: an engine, token by token, or any policy that answers messages with a message.

Both go through the rollout's own episode (box, budgets, stop rules, grading). Owned here: the turns of a policy without
tokens, and what it must offer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glmgym.env import Opening
from glmgym.errors import EngineFailure, boundary
from glmgym.folding import Count, Management, View, estimate_tokens
from glmgym.messages import Message, ToolSpec
from glmgym.rewards import RewardMix
from glmgym.rollout import (
    Budget,
    BudgetedEpisode,
    House,
    Job,
    OutOfTime,
    Request,
    Transcript,
    run_recorded,
    turn_seed,
    within,
)
from glmgym.sandbox import SandboxProvider
from glmgym.trajectory import Stop, Trajectory


class ContextFull(EngineFailure):
    """The policy's endpoint says that the messages no longer fit: a stop of the episode, not a failure of it."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of a policy. ``cut``: it ended at ``max_tokens``, not by itself."""

    message: Message
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int | None = None
    cut: bool = False


class Speaker(Protocol):
    """A policy during one episode."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        """The next turn; ``None`` when the policy has nothing more to say, which ends the episode.

        Raises:
            ContextFull: the messages do not fit.
            EngineFailure: the policy could not be asked.
        """
        ...


class Policy(Protocol):
    """A policy of messages. ``digest`` stands for all that its answers depend on beside messages, tools and seed."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    def speaker(self, job: Job) -> Speaker:
        """The policy for one episode."""
        ...

    async def close(self) -> None: ...


class Player(Protocol):
    """Plays attempts. ``name`` and ``digest`` are of its policy."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    async def play(self, job: Job) -> tuple[Trajectory | None, Transcript]:
        """One attempt; a trajectory as well where tokens were sampled."""
        ...


@dataclass(frozen=True, slots=True)
class TokenPlayer:
    """An engine with its chat."""

    name: str
    digest: str
    house: House

    async def play(self, job: Job) -> tuple[Trajectory | None, Transcript]:
        return await run_recorded(job, self.house)


@dataclass(frozen=True, slots=True)
class MessagePlayer:
    """A policy of messages, under the budget that engines play under."""

    policy: Policy
    provider: SandboxProvider | None
    budget: Budget
    rewards: RewardMix = field(default_factory=RewardMix)
    management: Management | None = None  # what of its history the policy is shown
    count: Count = estimate_tokens  # of the policy's tokens, for management

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def digest(self) -> str:
        return self.policy.digest

    async def play(self, job: Job) -> tuple[Trajectory | None, Transcript]:
        return None, await _MessageEpisode(job, self).play()


class _MessageEpisode(BudgetedEpisode):
    """The rollout's stop rules on messages; what a context holds is for the policy to say."""

    def __init__(self, job: Job, player: MessagePlayer) -> None:
        super().__init__(job, player.provider, player.budget, player.rewards)
        self._player = player
        self._view: View | None = None  # None: the policy is shown all

    async def converse(self, opening: Opening, deadline: float) -> Stop:
        player, speaker = self._player, self._player.policy.speaker(self.job)
        if player.management is not None:
            self._view = View(player.management, player.count, opening=len(opening.messages))
        left = self.budget.max_sampled_tokens
        while True:
            reply = await self._ask(speaker, opening, min(left, self.budget.max_turn_tokens), deadline)
            if isinstance(reply, Stop):
                return reply
            self.num_turns += 1
            left -= reply.sampled_tokens
            if reply.cut and left < 1:
                self.messages.append(reply.message)
                return Stop.BUDGET
            step = await self.step(reply.message, deadline)
            if step is None:
                return Stop.BUDGET
            if step.terminated:
                return Stop.DONE
            if step.truncated or self.num_turns >= self.max_turns:
                return Stop.MAX_TURNS
            if left < 1:
                return Stop.BUDGET

    async def _ask(self, speaker: Speaker, opening: Opening, max_tokens: int, deadline: float) -> Reply | Stop:
        """The next turn, or why there is none."""
        started = time.monotonic()
        seed = turn_seed(self.job.seed, len(self.requests))
        asked = speaker.reply(self._shown(), opening.tools, max_tokens=max_tokens, seed=seed)
        with boundary(EngineFailure, f"turn {self.num_turns} of {self.job.id}"):
            try:
                reply = await within(asked, max(0.0, deadline - started))
            except OutOfTime:
                return Stop.BUDGET
            except ContextFull:
                return Stop.CONTEXT_FULL
            finally:
                wall_s = time.monotonic() - started
                self.timings["generate"] += wall_s
        if reply is None:
            return Stop.DONE
        self.requests.append(Request(reply.prompt_tokens, reply.sampled_tokens, round(wall_s, 6), reply.cached_tokens))
        return reply

    def _shown(self) -> tuple[Message, ...]:
        """The messages for the turn to come."""
        if self._view is None:
            return tuple(self.messages)
        shown = self._view.of(self.messages)
        self.note_restarts(self._view.restarts)
        return shown

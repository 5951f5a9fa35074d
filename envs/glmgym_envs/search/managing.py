"""Context management for search agents: what of a long history a policy is shown (GLM-5 report, section 4.2).

Keep-recent-k folds the results of all but the last k rounds; discard-all starts again from the question once what is
left exceeds a limit; both together are the report's hierarchical management. It is a way to use a policy, not to train
one: ``Managed`` wraps a policy of messages, and the record of the episode stays whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from pydantic import Field

from glmgym.evaluation.player import Policy, Reply, Speaker
from glmgym.folding import fold
from glmgym.messages import Message, ToolSpec
from glmgym.rollout import Job
from glmgym.settings import Settings

Count = Callable[[Sequence[Message]], int]  # tokens of a conversation


class Management(Settings):
    """The report's hierarchical management by default; ``None`` switches a half off."""

    keep_recent: int | None = Field(default=5, ge=0)  # rounds whose tool results stay; k = 5 in the report
    discard_above: int | None = Field(default=32_768, ge=1)  # tokens; exactly so many are kept


class View:
    """What one episode's policy is shown. ``restarts`` counts how often the history was discarded.

    Args:
        opening: how many messages the question takes; they always stay.
    """

    def __init__(self, management: Management, count: Count, *, opening: int) -> None:
        self.restarts = 0
        self._management = management
        self._count = count
        self._opening = opening
        self._since = opening  # what the last restart left out ends here

    def of(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages to show for a history that only ever grows; the history itself is not changed."""
        keep, limit = self._management.keep_recent, self._management.discard_above
        shown = (*messages[: self._opening], *messages[self._since :])
        if keep is not None:
            shown = fold(shown, keep=keep)
        if limit is not None and len(shown) > self._opening and self._count(shown) > limit:
            self._since = len(messages)
            self.restarts += 1
            return tuple(messages[: self._opening])
        return shown


class Managed:
    """A policy of messages that is shown a managed history.

    Args:
        count: tokens of a conversation; an estimate by default, so give the policy's own where its limit is tight.
    """

    def __init__(self, policy: Policy, management: Management, count: Count | None = None) -> None:
        self._policy = policy
        self._management = management
        self._count = count or estimate_tokens

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def digest(self) -> str:
        """Of the policy and of how its history is managed."""
        return hashlib.sha256(f"{self._policy.digest} {self._management.model_dump_json()}".encode()).hexdigest()

    def speaker(self, job: Job) -> Speaker:
        return _Speaker(self._policy.speaker(job), self._management, self._count)

    async def close(self) -> None:
        await self._policy.close()


class _Speaker:
    def __init__(self, speaker: Speaker, management: Management, count: Count) -> None:
        self._speaker = speaker
        self._management = management
        self._count = count
        self._view: View | None = None

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        if self._view is None:  # nothing was said yet, so all there is belongs to the question
            self._view = View(self._management, self._count, opening=len(messages))
        return await self._speaker.reply(self._view.of(messages), tools, max_tokens=max_tokens, seed=seed)


def estimate_tokens(messages: Sequence[Message]) -> int:
    """About the tokens of a conversation: a token for four bytes, and four for each message."""
    return sum(4 + len(str(message.to_openai()).encode()) // 4 for message in messages)

"""Context management: what of a long history a policy is shown (GLM-5 report, section 4.2).

Keep-recent-k folds the results of all but the last k rounds; discard-all starts again from the question once what is
left exceeds a limit; both together are the report's hierarchical management. It is a way to use a policy, not to train
one. Owned here: the settings, and what becomes of messages. What becomes of tokens is ``glmgym.context``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import Field

from glmgym.messages import Message
from glmgym.settings import Settings

OMITTED = "Tool result is omitted to save tokens."

Count = Callable[[Sequence[Message]], int]  # tokens of a conversation


class Management(Settings):
    """The report's hierarchical management by default; ``None`` switches a half off."""

    keep_recent: int | None = Field(default=5, ge=0)  # rounds whose tool results stay; k = 5 in the report
    discard_above: int | None = Field(default=32_768, ge=1)  # tokens of the next prompt; exactly so many are kept

    @property
    def text(self) -> str:
        """In words, for the head of a table."""
        keep, limit = self.keep_recent, self.discard_above
        halves = [
            "" if keep is None else f"keep recent {keep}",
            "" if limit is None else f"discard above {limit:,} tokens",
        ]
        return "context managed: " + ", ".join(filter(None, halves))

    def discards(self, num_tokens: int) -> bool:
        """True when a prompt of so many tokens makes the history go."""
        return self.discard_above is not None and num_tokens > self.discard_above


def fold(messages: Sequence[Message], *, keep: int) -> tuple[Message, ...]:
    """The messages, the tool results of all but the last ``keep`` rounds replaced by ``OMITTED``.

    A round is an assistant message with the tool results that answer it. What the assistant thought and did stays, and
    the messages given are not changed: fold the whole history anew each time. Folding twice changes nothing more. A
    folded context is no continuation of the one before it, so tokens captured in it belong to a new segment.

    Raises:
        ValueError: ``keep`` is negative.
    """
    if keep < 0:
        raise ValueError(f"keep={keep}: a number of rounds, 0 to fold them all")
    answers = (at for at, message in enumerate(messages) if message.role == "tool")
    rounds = sorted({_question(messages, at) for at in answers})
    old = set(rounds[: max(0, len(rounds) - keep)])
    return tuple(
        replace(message, content=OMITTED) if message.role == "tool" and _question(messages, at) in old else message
        for at, message in enumerate(messages)
    )


class View:
    """What one episode's policy is shown. ``restarts`` counts how often the history was discarded.

    Args:
        count: tokens of a conversation; ``estimate_tokens``, or the policy's own where its limit is tight.
        opening: how many messages the question takes; they always stay as they are.
    """

    def __init__(self, management: Management, count: Count, *, opening: int) -> None:
        self.restarts = 0
        self._management = management
        self._count = count
        self._opening = opening
        self._since = opening  # what the last restart left out ends here

    def of(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages to show for a history that only ever grows; the history itself is not changed."""
        management = self._management
        question, later = tuple(messages[: self._opening]), tuple(messages[self._since :])
        if management.keep_recent is not None:
            later = fold(later, keep=management.keep_recent)
        if later and management.discards(self._count((*question, *later))):
            self._since = len(messages)
            self.restarts += 1
            return question
        return (*question, *later)


def estimate_tokens(messages: Sequence[Message]) -> int:
    """About the tokens of a conversation: a token for four bytes, and four for each message."""
    return sum(4 + len(str(message.to_openai()).encode()) // 4 for message in messages)


def _question(messages: Sequence[Message], at: int) -> int:
    """Where the assistant message stands that the tool result at ``at`` answers; -1 if there is none."""
    return next((i for i in range(at, -1, -1) if messages[i].role == "assistant"), -1)

"""Keep-recent-k: a conversation without the results of its older tool calls (GLM-5 report, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glmgym.messages import Message

OMITTED = "Tool result is omitted to save tokens."


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
    old = set(rounds[: len(rounds) - keep])
    return tuple(
        replace(message, content=OMITTED) if message.role == "tool" and _question(messages, at) in old else message
        for at, message in enumerate(messages)
    )


def _question(messages: Sequence[Message], at: int) -> int:
    """Where the assistant message stands that the tool result at ``at`` answers; -1 if there is none."""
    return next((i for i in range(at, -1, -1) if messages[i].role == "assistant"), -1)

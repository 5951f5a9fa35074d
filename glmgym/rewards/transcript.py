"""An episode as the text that a reward model or a judge reads."""

from __future__ import annotations

import json
from collections.abc import Sequence

from glmgym.messages import Message


def transcript(messages: Sequence[Message]) -> str:
    """One paragraph per message, with its calls as JSON. Reasoning is left out: it is not addressed to anybody."""
    return "\n\n".join(f"{message.role}: {_text(message)}" for message in messages)


def _text(message: Message) -> str:
    calls = [
        f"{call.name} {json.dumps(dict(call.arguments), sort_keys=True)}" if call.error is None else f"({call.error})"
        for call in message.tool_calls
    ]
    return "\n".join(part for part in (message.content, *calls) if part)

"""A checkpoint's own chat template, rendered in a sandbox: to compare with and to borrow its tool block from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmgym.errors import ConfigError
from glmgym.messages import Message, ToolSpec


def apply_template(
    template_text: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), **flags: Any
) -> str:
    """The text a Jinja chat template makes of ``messages``, with the filters that Hugging Face templates rely on.

    Args:
        flags: template variables such as ``enable_thinking``, ``clear_thinking``, ``add_generation_prompt``.

    Raises:
        ConfigError: the template is not valid or refuses these messages.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template_text).render(
            messages=[message.to_openai() for message in messages],
            tools=[tool.to_openai() for tool in tools] or None,
            **flags,
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template cannot render: {error}") from error


def first_difference(ours: str, theirs: str, context: int = 24) -> str | None:
    """Where two texts part, as a sentence; ``None`` if they are equal."""
    if ours == theirs:
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, at - context)
    return f"at character {at}: ours {ours[start : at + context]!r}, the template's {theirs[start : at + context]!r}"


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)  # Jinja's own filter escapes HTML and sorts keys


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)

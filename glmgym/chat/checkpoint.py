"""Chat from a checkpoint directory: its tokenizer, and its template as the judge of our dialect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glmgym.chat.chat import Chat, History
from glmgym.chat.template import apply_template, first_difference
from glmgym.chat.tokenizer import load_tokenizer
from glmgym.chat.wire import DialectName
from glmgym.errors import ConfigError
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user


def load_chat(
    directory: str | Path, dialect: DialectName = "glm47", *, thinking: bool, history: History = "preserve"
) -> Chat:
    """The chat of a checkpoint. Where it has a ``chat_template.jinja``, the dialect must agree with it.

    The tool block is then the template's own, since that is the wording the checkpoint was trained on.

    Raises:
        ConfigError: no tokenizer, a GLM token is missing, or dialect and template differ (told where).
    """
    tokenizer = load_tokenizer(directory)
    path = Path(directory) / "chat_template.jinja"
    if not path.is_file():
        return Chat(tokenizer, dialect, thinking=thinking, history=history)
    template = path.read_text(encoding="utf-8")

    def tools_text(tools: Sequence[ToolSpec]) -> str:
        return _tool_block(template, tools)

    chat = Chat(tokenizer, dialect, thinking=thinking, history=history, tools_text=tools_text)
    check_dialect(chat, template, where=str(path))
    return chat


def check_dialect(chat: Chat, template: str, *, where: str) -> None:
    """Compare our rendering of a probe conversation with the template's.

    Raises:
        ConfigError: they differ; the message shows the first difference.
    """
    rerender = chat.history == "rerender"
    theirs = apply_template(
        template,
        probe := _probe(thinking=chat.thinking, second_question=rerender),
        enable_thinking=chat.thinking,
        clear_thinking=rerender,
        add_generation_prompt=True,
    )
    difference = first_difference(chat.opening_text(probe), theirs)
    if difference is not None:
        raise ConfigError(
            f"{where}: the template does not speak dialect {chat.dialect.name!r} "
            f"(thinking {'on' if chat.thinking else 'off'}), {difference}; choose the dialect that fits the checkpoint"
        )


def _probe(*, thinking: bool, second_question: bool) -> list[Message]:
    """Every element of the format once. Reasoning before a user message only where the dialect is to drop it."""
    calls = [ToolCall("call_0", "run", {"cmd": "ls -l", "retries": 2}), ToolCall("call_1", "run", {"cmd": '["é"]'})]
    reasoning = "look first" if thinking else None
    chain = [system("be brief"), user("what is here?"), assistant("looking", *calls, reasoning=reasoning)]
    chain += [tool_result(call, f"a.txt\n{call.id}") for call in calls]
    return [*chain, assistant("a file", reasoning=reasoning), user("thanks")] if second_question else chain


def _tool_block(template: str, tools: Sequence[ToolSpec]) -> str:
    """What the template adds for ``tools``: the text between the start of the prompt and the first message."""
    question = [user("?")]
    plain = apply_template(template, question, enable_thinking=True)
    told = apply_template(template, question, tools, enable_thinking=True)
    start = "[gMASK]<sop>"
    tail = plain.removeprefix(start)
    if not (told.startswith(start) and told.endswith(tail)):
        raise ConfigError("the chat template does not put its tool block between '[gMASK]<sop>' and the first message")
    return told[len(start) : len(told) - len(tail)]

"""A checkpoint directory: its tokenizer is used, its template judges the dialect and words the tool block."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmgym.chat import Chat, DialectName, History, apply_template, load_chat
from glmgym.errors import ConfigError
from glmgym.messages import ToolSpec, assistant, system, user
from glmgym_trainers.make_tokenizer import DEFAULT_TEXTS, train_tokenizer

DATA = Path(__file__).parent / "data" / "chat"
RUN = ToolSpec("run", "Run <b>.", {"type": "object", "properties": {"cmd": {"type": "string"}}})
OTHER = {"glm45": "glm47", "glm47": "glm45"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    train_tokenizer(DEFAULT_TEXTS, 512).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("dialect", ["glm45", "glm47"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("history", ["preserve", "rerender"])
def test_the_template_decides_which_dialect_loads(
    checkpoint: Path, dialect: DialectName, thinking: bool, history: History
) -> None:
    (checkpoint / "chat_template.jinja").write_text((DATA / f"{dialect}.jinja").read_text())
    load_chat(checkpoint, dialect, thinking=thinking, history=history)
    with pytest.raises(ConfigError, match=r"does not speak dialect .* at character 22: ours "):
        load_chat(checkpoint, OTHER[dialect], thinking=thinking, history=history)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'<tool_response>'", "'<tool_response> '"),
        ("'<think>' +", "'<think> ' +"),
        ("if state.previous != 'tool'", "if true"),
        ("value if value is string else", ""),
        ("</tool_call>", "</tool_call> "),
        ("+ message.content.strip()", "+ message.content + ' '"),
        ("else '<think>'", "else ''"),
    ],
)
def test_one_changed_rule_is_noticed(checkpoint: Path, old: str, new: str) -> None:
    template = (DATA / "glm47.jinja").read_text()
    assert old in template
    (checkpoint / "chat_template.jinja").write_text(template.replace(old, new))
    with pytest.raises(ConfigError, match="does not speak dialect 'glm47'"):
        load_chat(checkpoint, "glm47", thinking=True)


def test_a_template_that_keeps_old_reasoning_is_not_a_rewriting_one(checkpoint: Path) -> None:
    template = (DATA / "glm47.jinja").read_text().replace("loop.index0 > state.last_user", "true")
    (checkpoint / "chat_template.jinja").write_text(template)
    load_chat(checkpoint, "glm47", thinking=True, history="preserve")
    with pytest.raises(ConfigError, match="does not speak"):
        load_chat(checkpoint, "glm47", thinking=True, history="rerender")


def test_the_tool_block_is_the_templates_own(checkpoint: Path) -> None:
    """Its wording and its special tokens, and still nothing but ``apply_template`` of the same messages."""
    template = (DATA / "glm47.jinja").read_text().replace("</tools>", "</tools>\nCall as <tool_call>name</tool_call>.")
    (checkpoint / "chat_template.jinja").write_text(template)
    chat = load_chat(checkpoint, "glm47", thinking=True)
    messages = [system("s"), user("u"), assistant("a", reasoning="r"), user("v")]
    text = apply_template(
        template, messages, [RUN], enable_thinking=True, clear_thinking=False, add_generation_prompt=True
    )
    assert chat.opening_text(messages, [RUN]) == text
    assert "Call as <tool_call>" in text
    assert '{"name": "run", "description": "Run <b>.", "parameters": {' in text
    ids = chat.opening(messages, [RUN])
    assert chat.tokenizer.decode(ids) == text
    assert ids.count(chat.tokenizer.id_of("<tool_call>")) == 1
    assert chat.template_sha256 != Chat(chat.tokenizer, "glm47", thinking=True).template_sha256


def test_each_way_of_talking_has_its_own_digest(checkpoint: Path) -> None:
    chats = [
        load_chat(checkpoint, dialect, thinking=thinking, history=history)
        for dialect in ("glm45", "glm47")
        for thinking in (True, False)
        for history in ("preserve", "rerender")
    ]
    assert len({chat.template_sha256 for chat in chats}) == 8
    assert chats[0].template_sha256 == load_chat(checkpoint, "glm45", thinking=True).template_sha256


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[", "cannot render"),
        ("{{ raise_exception('no tools here') }}", "cannot render: no tools here"),
        ("{{ messages.__class__.__mro__ }}", "cannot render: access to attribute '__class__'"),
    ],
)
def test_a_broken_or_nosy_template_is_a_sentence(checkpoint: Path, template: str, message: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=message):
        load_chat(checkpoint, thinking=True)


def test_an_unknown_dialect_names_the_nearest(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="unknown dialect 'glm-47'; did you mean 'glm47'"):
        load_chat(checkpoint, "glm-47", thinking=True)  # type: ignore[arg-type]

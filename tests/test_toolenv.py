"""``ToolEnv``: the loop over calls, and what the policy reads when a call is bad."""

from __future__ import annotations

from typing import Any

import pytest

from glmgym import Reward, ScoreView, Task, ToolCall, ToolEnv, assistant, system, tool, user
from glmgym.errors import ConfigError, SandboxDead, ToolFailure

NOT_OBJECTS: tuple[Any, ...] = ('{"cmd": "ls"', "", None, [], "str")


@tool
async def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


class Notebook(ToolEnv):
    """Write notes and read the last one."""

    system = "Keep notes."
    max_observation_chars = 20

    def __init__(self) -> None:
        self.notes: list[str] = []

    @tool
    async def note(self, text: str) -> str:
        """Write a note."""
        if text == "boom":
            raise KeyError(text)
        if text == "kill":
            raise SandboxDead("gone")
        self.notes.append(text)
        return f"{len(self.notes)} notes"

    tools = (echo, note)

    def opening(self, task: Task) -> str:
        return f"Note: {task.instruction}"

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("noted", float(self.task.instruction in self.notes)),)


async def _opened() -> Notebook:
    env = Notebook()
    await env.reset(Task("t", "fox"), None)
    return env


async def test_reset_shows_the_system_prompt_the_task_and_the_tools() -> None:
    opening = await Notebook().reset(Task("t", "fox"), None)
    assert opening.messages == (system("Keep notes."), user("Note: fox"))
    assert [spec.name for spec in opening.tools] == ["echo", "note"]
    assert opening.tools[1].parameters["properties"] == {"text": {"type": "string"}}


async def test_calls_run_in_order_and_each_is_answered_by_its_own_id() -> None:
    env = await _opened()
    reply = assistant("", *(ToolCall(f"id{i}", "note", {"text": text}) for i, text in enumerate("abc")))
    step = await env.step(reply)
    assert [(m.role, m.tool_call_id, m.content) for m in step.observation] == [
        ("tool", "id0", "1 notes"),
        ("tool", "id1", "2 notes"),
        ("tool", "id2", "3 notes"),
    ]
    assert env.notes == ["a", "b", "c"]
    assert not step.terminated
    assert step.info == {"failed_calls": 0}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            ToolCall("bad", "note", error='the arguments are not JSON: {"text": "a"'),
            "error: the arguments are not JSON",
        ),
        (ToolCall("bad", "nota", {"text": "a"}), "error: unknown tool 'nota'; did you mean 'note'?"),
        (ToolCall("bad", "note", {}), "error: missing argument 'text'"),
        *[(ToolCall("bad", "note", raw), "error: arguments of note must be a JSON object") for raw in NOT_OBJECTS],
    ],
)
async def test_a_malformed_call_is_answered_and_the_loop_goes_on(bad: ToolCall, said: str) -> None:
    """Case T6: the bad call gets an error observation with its own id; the good one beside it still runs."""
    env = await _opened()
    env.max_observation_chars = 200
    step = await env.step(assistant("", bad, ToolCall("good", "note", {"text": "fox"})))
    first, second = step.observation
    assert first.tool_call_id == "bad"
    assert first.content.startswith(said)
    assert (second.tool_call_id, second.content) == ("good", "1 notes")
    assert step.info == {"failed_calls": 1}
    assert not step.terminated
    assert (await env.step(assistant("done"))).terminated


async def test_a_reply_without_calls_ends_the_episode() -> None:
    step = await (await _opened()).step(assistant("fox"))
    assert step.terminated
    assert not step.truncated
    assert step.observation == ()


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (20, "0123456789" * 2),
        (21, "0123456789\n[... 1 characters cut ...]\n1234567890"),
        (1000, "0123456789\n[... 980 characters cut ...]\n0123456789"),
    ],
)
async def test_long_output_keeps_its_head_and_its_tail(length: int, shown: str) -> None:
    """The limit is 20 characters: at 20 all is shown, at 21 one is cut out of the middle and said."""
    env = await _opened()
    text = ("0123456789" * 100)[:length]
    step = await env.step(assistant("", ToolCall("1", "echo", {"text": text})))
    assert step.observation[0].content == shown


async def test_an_odd_limit_loses_nothing_but_what_it_says() -> None:
    env = await _opened()
    env.max_observation_chars = 5
    step = await env.step(assistant("", ToolCall("1", "echo", {"text": "abcdefgh"})))
    assert step.observation[0].content == "abc\n[... 3 characters cut ...]\ngh"


async def test_a_broken_tool_and_a_dead_box_are_failures_not_observations() -> None:
    env = await _opened()
    with pytest.raises(ToolFailure, match="tool note: KeyError"):
        await env.step(assistant("", ToolCall("1", "note", {"text": "boom"})))
    with pytest.raises(SandboxDead):
        await env.step(assistant("", ToolCall("1", "note", {"text": "kill"})))


async def test_mistakes_of_the_author_are_said_at_reset() -> None:
    @tool
    async def peek(path: str, box: Any) -> str:
        """Look."""
        return path

    class NeedsBox(Notebook):
        tools = (peek, echo)

    class Twins(Notebook):
        tools = (echo, echo)

    with pytest.raises(ConfigError, match="'peek' wants a box"):
        await NeedsBox().reset(Task("t", "x"), None)
    with pytest.raises(ConfigError, match="two tools of the same name"):
        await Twins().reset(Task("t", "x"), None)

"""``@tool``: schemas from signatures, and who is to blame when a call goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

from glmgym.errors import ConfigError, SandboxDead, ToolFailure
from glmgym.sandbox import BoxFileError
from glmgym.tool import ToolError, ToolResult, tool

if TYPE_CHECKING:
    from nowhere import Box  # type: ignore[import-not-found]  # the type of ``box`` need not exist at run time


@tool
async def search(
    query: str,
    limit: int = 3,
    exact: bool = False,
    weight: float | None = None,
    kind: Literal["file", "word"] = "file",
    tags: list[str] | None = None,
    extra: dict[str, int] | None = None,
    *,
    box: Box = None,
) -> Any:
    """Search the notes.

    Finds whole words only.

    Args:
        query: what to look for;
            a single word.
        limit: how many results (at most).

    Returns:
        query: not an argument.
    """
    return {"query": query, "limit": limit, "exact": exact, "weight": weight, "tags": tags, "box": box}


def test_schema_is_the_signature_and_the_docstring() -> None:
    """``box`` is injected and stays out; continuation lines join; sections after Args are not read."""
    assert search.spec.name == "search"
    assert search.spec.description == "Search the notes.\n\nFinds whole words only."
    assert search.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for; a single word."},
            "limit": {"type": "integer", "description": "how many results (at most).", "default": 3},
            "exact": {"type": "boolean", "default": False},
            "weight": {"type": "number"},
            "kind": {"type": "string", "enum": ["file", "word"], "default": "file"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["query"],
    }


async def test_defaults_are_the_functions_own_and_the_box_is_handed_in() -> None:
    box: Any = "the box"
    result = await search({"query": "é", "tags": ["a"]}, box)
    expected = '{"query": "é", "limit": 3, "exact": false, "weight": null, "tags": ["a"], "box": "the box"}'
    assert result == ToolResult(expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"cmd": "ls"', 'arguments of search must be a JSON object, got "{\\"cmd\\": \\"ls\\""'),
        ("", 'arguments of search must be a JSON object, got ""'),
        (None, "arguments of search must be a JSON object, got null"),
        ([], "arguments of search must be a JSON object, got []"),
        ("str", 'arguments of search must be a JSON object, got "str"'),
        ({}, "missing argument 'query'"),
        ({"query": 3}, "argument 'query' must be a valid string, got 3"),
        ({"query": "a", "limit": "3"}, "argument 'limit' must be a valid integer, got \"3\""),
        ({"query": "a", "limit": True}, "argument 'limit' must be a valid integer, got true"),
        ({"query": "a", "kind": "line"}, "argument 'kind' must be 'file' or 'word', got \"line\""),
        ({"query": "a", "tags": ["x", 1]}, "argument 'tags.1' must be a valid string, got 1"),
        ({"quary": "a"}, "unknown argument 'quary'; did you mean 'query'?; missing argument 'query'"),
        (
            {"query": "a", "box": "mine"},
            "unknown argument 'box'; known: exact, extra, kind, limit, query, tags, weight",
        ),
    ],
)
async def test_a_bad_call_is_a_sentence_for_the_policy(arguments: Any, said: str) -> None:
    """Case T6: malformed arguments are the policy's mistake, not a failure; the injected box cannot be forged."""
    assert await search(arguments) == ToolResult(said, ok=False)


@tool
async def breaks(how: str) -> Any:
    """Break."""
    errors = {
        "policy": ToolError("there is no such page"),
        "file": BoxFileError("/work/a: No such file or directory"),
        "bug": ZeroDivisionError("division by zero"),
        "dead": SandboxDead("the box was killed"),
    }
    if how == "unserialisable":
        return object()
    raise errors[how]


@pytest.mark.parametrize(
    ("how", "said"), [("policy", "there is no such page"), ("file", "/work/a: No such file or directory")]
)
async def test_what_the_policy_asked_for_wrongly_is_an_answer(how: str, said: str) -> None:
    assert await breaks({"how": how}) == ToolResult(said, ok=False)


async def test_what_broke_on_our_side_is_a_failure() -> None:
    with pytest.raises(ToolFailure, match="tool breaks: ZeroDivisionError: division by zero") as caught:
        await breaks({"how": "bug"})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ToolFailure, match="tool breaks: TypeError"):
        await breaks({"how": "unserialisable"})


async def test_a_dead_box_passes_through_unchanged() -> None:
    with pytest.raises(SandboxDead, match=r"^the box was killed$"):
        await breaks({"how": "dead"})


def _plain(a: str) -> str:
    """Doc."""
    return a


async def _undocumented(a: str) -> str:
    return a


async def _tuple(first: str, second: tuple[int, int]) -> str:
    """Doc."""
    return f"{first}{second}"


async def _nested(rows: list[set[str]]) -> str:
    """Doc."""
    return str(rows)


async def _mixed(kind: Literal["a", 1]) -> str:
    """Doc."""
    return str(kind)


async def _bare(a) -> str:  # type: ignore[no-untyped-def]
    """Doc."""
    return str(a)


async def _open(*rest: str) -> str:
    """Doc."""
    return str(rest)


async def _typo(query: str) -> str:
    """Doc.

    Args:
        qurey: what to look for.
    """
    return query


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_plain, "tool '_plain' must be an async function"),
        (_undocumented, "tool '_undocumented' needs a docstring"),
        (_tuple, r"tool '_tuple', parameter 'second': annotation tuple\[int, int\] is not supported"),
        (_nested, r"parameter 'rows': annotation set\[str\] is not supported"),
        (_mixed, r"parameter 'kind': annotation typing.Literal\['a', 1\] is not supported"),
        (_bare, "parameter 'a': needs a type annotation"),
        (_open, "parameter 'rest': .*no place in a schema"),
        (_typo, "describes an argument 'qurey' it does not have; did you mean 'query'"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tool(function)


async def test_a_method_is_a_tool_of_its_owner() -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start

        @tool
        async def add(self, n: int) -> int:
            """Add."""
            self.value += n
            return self.value

    one, two = Counter(1), Counter(10)
    assert Counter.add.spec.parameters["required"] == ["n"]
    assert (await Counter.add.bind(one)({"n": 2})).text == "3"
    assert (await Counter.add.bind(two)({"n": 2})).text == "12"
    assert one.value == 3

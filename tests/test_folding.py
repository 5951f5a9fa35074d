"""Keep-recent-k on hand-made histories and random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym.folding import OMITTED, fold
from glmgym.messages import Message, ToolCall, assistant, system, tool_result, user


def history(rounds: int, results: int = 1) -> list[Message]:
    messages = [system("Search."), user("Who?")]
    for number in range(rounds):
        calls = [ToolCall(f"{number}.{i}", "search", {"q": str(number)}) for i in range(results)]
        messages.append(assistant(f"Try {number}.", *calls, reasoning="hm"))
        messages += [tool_result(call, f"page {call.id}") for call in calls]
    return messages


@pytest.mark.parametrize(
    ("rounds", "keep", "folded"), [(7, 5, [0, 1]), (5, 5, []), (2, 5, []), (3, 0, [0, 1, 2]), (0, 0, [])]
)
def test_observations_older_than_the_last_k_rounds_are_omitted(rounds: int, keep: int, folded: list[int]) -> None:
    """Algorithms 10: n = 7, k = 5 folds o1 and o2; n <= k folds none; k = 0 folds all."""
    messages = history(rounds)
    view = fold(messages, keep=keep)
    contents = [message.content for message in view if message.role == "tool"]
    assert contents == [OMITTED if number in folded else f"page {number}.0" for number in range(rounds)]
    assert messages == history(rounds)


def test_a_round_with_several_results_is_folded_whole() -> None:
    view = fold(history(2, results=3), keep=1)
    assert [message.content for message in view if message.role == "tool"] == [OMITTED] * 3 + [
        f"page 1.{i}" for i in range(3)
    ]


@given(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=12), st.integers(0, 4))
def test_folding_is_idempotent_and_touches_tool_results_alone(roles: list[str], keep: int) -> None:
    """Invariant 17."""
    messages = [Message(role, f"text {at}") for at, role in enumerate(roles)]  # type: ignore[arg-type]
    view = fold(messages, keep=keep)
    assert fold(view, keep=keep) == view
    assert len(view) == len(messages)
    for before, after in zip(messages, view, strict=True):
        assert after == before or (after.role == "tool" and after.content == OMITTED)


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="keep=-1"):
        fold(history(1), keep=-1)

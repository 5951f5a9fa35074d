"""Context management of messages: recent results, a fresh start beyond the limit, and never a changed record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym.folding import OMITTED, Management, View, estimate_tokens, fold
from glmgym.messages import Message, ToolCall, assistant, system, tool_result, user


def history(rounds: int, results: int = 1) -> list[Message]:
    messages = [system("Search."), user("Who?")]
    for number in range(rounds):
        calls = [ToolCall(f"{number}.{i}", "search", {"q": str(number)}) for i in range(results)]
        messages.append(assistant(f"Try {number}.", *calls, reasoning="hm"))
        messages += [tool_result(call, f"page {call.id}") for call in calls]
    return messages


@pytest.mark.parametrize(
    ("rounds", "keep", "folded"),
    [(7, 5, [0, 1]), (5, 5, []), (4, 5, []), (2, 3, []), (2, 5, []), (3, 0, [0, 1, 2]), (0, 0, [])],
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


# What is shown of a history that grows


def folded(shown: Sequence[Message]) -> int:
    return sum(message.content == OMITTED for message in shown)


def results(messages: Sequence[Message]) -> int:
    """A count that a reader can follow: messages of tools."""
    return sum(message.role == "tool" for message in messages)


@pytest.mark.parametrize(
    ("rounds", "keep", "old"), [(7, 5, 2), (5, 5, 0), (6, 5, 1), (4, 5, 0), (3, 0, 3), (3, None, 0)]
)
def test_results_beyond_the_recent_rounds_are_folded(rounds: int, keep: int | None, old: int) -> None:
    view = View(Management(keep_recent=keep, discard_above=None), estimate_tokens, opening=2)
    messages = history(rounds)
    shown = view.of(messages)
    assert folded(shown) == old
    assert [m.role for m in shown] == [m.role for m in messages]
    assert messages == history(rounds)


@pytest.mark.parametrize(("limit", "restarts"), [(32_768, 0), (32_767, 1)])
def test_the_history_is_discarded_beyond_the_limit_and_not_at_it(limit: int, restarts: int) -> None:
    """Algorithms 10: tokens equal to T are kept, T + 1 are not; 4 rounds of 8,191 tokens and a question of 4."""
    view = View(Management(keep_recent=None, discard_above=limit), lambda m: 4 + 8191 * results(m), opening=2)
    shown = view.of(history(4))
    assert view.restarts == restarts
    assert shown == tuple(history(0 if restarts else 4))


def test_after_a_restart_only_what_came_later_is_shown_and_folding_goes_on() -> None:
    view = View(Management(keep_recent=1, discard_above=3), results, opening=2)
    whole = history(9)
    shown = [view.of(whole[: 2 + 2 * rounds]) for rounds in range(1, 8)]
    assert [len(each) for each in shown] == [4, 6, 8, 2, 4, 6, 8]
    assert view.restarts == 1
    assert [m.tool_call_id for m in shown[-1] if m.role == "tool"] == ["4.0", "5.0", "6.0"]
    assert folded(shown[-1]) == 2


def test_what_is_folded_counts_as_it_is_shown() -> None:
    """Five results of 4,000 characters are too long for the limit, one with four that are omitted is not."""
    messages = [replace(m, content="x" * 4000) if m.role == "tool" else m for m in history(5)]
    for keep, restarts in ((1, 0), (None, 1)):
        view = View(Management(keep_recent=keep, discard_above=1600), estimate_tokens, opening=2)
        view.of(messages)
        assert view.restarts == restarts


def test_a_question_longer_than_the_limit_is_not_discarded_again_and_again() -> None:
    view = View(Management(discard_above=1), lambda messages: 100, opening=2)
    assert view.of(history(0)) == tuple(history(0))
    assert view.restarts == 0


def test_examples_in_the_question_are_no_rounds() -> None:
    opening = [*history(2), user("And now?")]
    view = View(Management(keep_recent=1, discard_above=None), estimate_tokens, opening=len(opening))
    assert folded(view.of([*opening, *history(1)[2:]])) == 0


@given(st.integers(0, 12), st.integers(0, 6), st.integers(1, 12))
def test_every_view_is_folded_history_within_the_limit_or_the_question(rounds: int, keep: int, limit: int) -> None:
    view = View(Management(keep_recent=keep, discard_above=limit), results, opening=2)
    for at in range(rounds + 1):
        shown = view.of(history(at))
        assert shown[:2] == tuple(history(0))
        assert results(shown) <= limit
        assert results(shown) - folded(shown) <= keep


@pytest.mark.parametrize(
    ("keep", "limit", "text"),
    [
        (5, 32_768, "context managed: keep recent 5, discard above 32,768 tokens"),
        (0, None, "context managed: keep recent 0"),
        (None, 9, "context managed: discard above 9 tokens"),
    ],
)
def test_management_in_words(keep: int | None, limit: int | None, text: str) -> None:
    assert Management(keep_recent=keep, discard_above=limit).text == text

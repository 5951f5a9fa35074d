"""What a managed policy is shown: recent results, a fresh start beyond the limit, and never a changed record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmgym.evaluation.player import MessagePlayer, Reply
from glmgym.folding import OMITTED
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from glmgym.rollout import Budget, Job
from glmgym_envs.search import MINI
from glmgym_envs.search.expert import oracle
from glmgym_envs.search.library import mini_library
from glmgym_envs.search.managing import Managed, Management, View, estimate_tokens

OPENING = (system("s"), user("q"))


def history(rounds: int) -> list[Message]:
    calls = [ToolCall(f"c{n}", "search", {"query": f"{n}"}) for n in range(rounds)]
    return [*OPENING, *(m for call in calls for m in (assistant("", call), tool_result(call, f"result {call.id}")))]


def folded(shown: Sequence[Message]) -> int:
    return sum(message.content == OMITTED for message in shown)


def results(messages: Sequence[Message]) -> int:
    """A count that a reader can follow: messages of tools."""
    return sum(message.role == "tool" for message in messages)


@pytest.mark.parametrize(("rounds", "keep", "old"), [(7, 5, 2), (5, 5, 0), (6, 5, 1), (3, 0, 3), (3, None, 0)])
def test_results_beyond_the_recent_rounds_are_folded(rounds: int, keep: int | None, old: int) -> None:
    view = View(Management(keep_recent=keep, discard_above=None), estimate_tokens, opening=2)
    messages = history(rounds)
    shown = view.of(messages)
    assert folded(shown) == old
    assert [m.role for m in shown] == [m.role for m in messages]
    assert messages == history(rounds)


@pytest.mark.parametrize(("limit", "restarts"), [(4, 0), (3, 1)])
def test_the_history_is_discarded_beyond_the_limit_and_not_at_it(limit: int, restarts: int) -> None:
    view = View(Management(keep_recent=None, discard_above=limit), results, opening=2)
    shown = view.of(history(4))
    assert view.restarts == restarts
    assert shown == (OPENING if restarts else tuple(history(4)))


def test_after_a_restart_only_what_came_later_is_shown_and_folding_goes_on() -> None:
    view = View(Management(keep_recent=1, discard_above=3), results, opening=2)
    whole = history(9)
    shown = [view.of(whole[: 2 + 2 * rounds]) for rounds in range(1, 8)]
    assert [len(each) for each in shown] == [4, 6, 8, 2, 4, 6, 8]
    assert view.restarts == 1
    assert [m.tool_call_id for m in shown[-1] if m.role == "tool"] == ["c4", "c5", "c6"]
    assert folded(shown[-1]) == 2


def test_a_question_longer_than_the_limit_is_not_discarded_again_and_again() -> None:
    view = View(Management(discard_above=1), lambda messages: 100, opening=2)
    assert view.of(OPENING) == OPENING
    assert view.restarts == 0


@given(st.integers(0, 12), st.integers(0, 6), st.integers(1, 12))
def test_every_view_is_folded_history_within_the_limit_or_the_question(rounds: int, keep: int, limit: int) -> None:
    view = View(Management(keep_recent=keep, discard_above=limit), results, opening=2)
    for at in range(rounds + 1):
        shown = view.of(history(at))
        assert shown[:2] == OPENING
        assert results(shown) <= limit
        assert results(shown) - folded(shown) <= keep


@dataclass
class _Expert:
    """Plays the shipped oracle's turns and notes what it was shown."""

    name: str = "expert"
    digest: str = "0"
    shown: list[tuple[Message, ...]] = field(default_factory=list)
    turns: list[Message] = field(default_factory=list)

    def speaker(self, job: Job) -> _Expert:
        self.turns = oracle(mini_library(), job.task)
        return self

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        self.shown.append(tuple(messages))
        return Reply(self.turns[len(self.shown) - 1])

    async def close(self) -> None:
        return None


async def test_an_episode_under_management_is_graded_on_the_whole_and_recorded_whole() -> None:
    long = (MINI.tasks.task("train", index) for index in range(MINI.tasks.size("train")))
    task = next(task for task in long if len(oracle(mini_library(), task)) >= 9)
    expert = _Expert()
    player = MessagePlayer(Managed(expert, Management(keep_recent=1, discard_above=None)), None, Budget(max_turns=24))
    _, transcript = await player.play(Job("j", task, MINI, seed=0))
    assert transcript.outcome.result() == 1.0
    assert folded(transcript.messages) == 0
    assert folded(expert.shown[-1]) == len(expert.turns) - 2


def test_a_result_depends_on_how_the_history_is_managed() -> None:
    one, two = (Managed(_Expert(), Management(keep_recent=keep)).digest for keep in (1, 2))
    assert one != two
    assert one == Managed(_Expert(), Management(keep_recent=1)).digest

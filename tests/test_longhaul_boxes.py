"""``longhaul`` in real boxes: it is sound, nothing is read twice, and a small context must be compacted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from glmgym import Message, Task, ToolCall, assistant
from glmgym.chat import Chat, load_tokenizer
from glmgym.check import Played, check, play
from glmgym.engines import ScriptedEngine
from glmgym.registry import environment
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.sandbox import SandboxProvider
from glmgym.trajectory import SegmentEnd, Stop, Trajectory
from glmgym.verify import trajectory_problems
from glmgym_envs.longhaul import COMPACTION, CONTEXT_TOKENS, Hauler, demonstrate, oracle, rehearse
from glmgym_envs.longhaul.hauls import LENGTHS, MAX_TURNS, make_of
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_trainers.policy import resolve
from glmgym_trainers.recipe import load_recipe

pytestmark = pytest.mark.bubblewrap
SPEC = environment("longhaul")
CHAT = Chat(load_tokenizer(resolve("base")), "glm47", thinking=False)
COMPACTIONS = {4: 1, 5: 2, 6: 2, 7: 3}  # by files of the chain, for a policy that makes no mistake


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 2})
    yield opened
    await opened.close()


def _cat(name: str, argument: str = "cmd") -> Message:
    return assistant("", ToolCall("c", "shell", {argument: f"cat {name}"}))


def _chain(task: Task) -> list[Message]:
    return [message for message in oracle(task) if message.tool_calls]


def _task(length: int) -> Task:
    return replace(make_of(length, random.Random(f"real {length}")), id=f"files-{length}")


async def test_the_environment_is_sound(provider: SandboxProvider) -> None:
    """One task of each length in both splits: the oracle scores 1, doing nothing 0, twice, on the same files."""
    report = await check(SPEC, provider, tasks=len(LENGTHS))
    assert report.problems == ()
    assert report.episodes == 2 * len(LENGTHS) * 3 * 2


@pytest.mark.parametrize(
    ("answer", "early", "end"),
    [("{0} {1}", 1, 1), ("{0} gate", 1, 0), ("gate {1}", 0, 1), ("{1} {0}", 0, 0), ("{0}", 1, 0), ("", 0, 0)],
)
async def test_both_facts_in_order_are_the_score_and_each_is_reported(
    provider: SandboxProvider, answer: str, early: int, end: int
) -> None:
    task = _task(4)
    said = assistant(answer.format(*task.data["answer"].split()))
    episode = await play(SPEC, task, [said], provider)
    assert {reward.name: reward.value for reward in episode.rewards} == {
        "check": early and end,
        "early": early,
        "end": end,
    }
    assert episode.total == (early and end)


async def test_each_file_is_read_once_and_no_command_is_left_to_look_back(provider: SandboxProvider) -> None:
    """The last command is the last file's; one more is not run, whatever it is, and ends the episode."""
    task = _task(4)
    commands = _chain(task)
    full = await play(SPEC, task, [*commands, assistant(task.data["answer"])], provider)
    assert full.total == 1.0
    over = await play(SPEC, task, [*commands, commands[0], assistant(task.data["answer"])], provider)
    assert over.total == 0.0
    assert over.messages == (*full.messages[:-1], commands[0])


async def test_a_malformed_call_costs_a_turn_and_no_command(provider: SandboxProvider) -> None:
    task = _task(7)
    wrong = [_cat("x.txt", argument="command")] * (MAX_TURNS - 8)
    episode = await play(SPEC, task, [*wrong, *oracle(task)], provider)
    assert episode.total == 1.0
    assert len(wrong) == 4
    assert [message.content for message in episode.messages if message.role == "tool"][:4] == [
        "error: unknown argument 'command'; did you mean 'cmd'?; missing argument 'cmd'"
    ] * 4


async def test_two_calls_in_one_turn_are_two_commands(provider: SandboxProvider) -> None:
    task = _task(4)
    (first, second, third, fourth) = (message.tool_calls[0] for message in _chain(task))
    answer = assistant(task.data["answer"])
    within = await play(SPEC, task, [assistant("", first, second), assistant("", third, fourth), answer], provider)
    assert within.total == 1.0
    beyond = await play(SPEC, task, [assistant("", first, second, third, fourth, first), answer], provider)
    assert beyond.total == 0.0
    assert beyond.messages[-1].role == "assistant"


async def test_all_files_at_once_are_cut(provider: SandboxProvider) -> None:
    episode = await play(SPEC, _task(7), [_cat("*")], provider)
    assert "characters cut ..." in episode.messages[-1].content


async def test_demonstrations_say_exactly_what_the_environment_says(provider: SandboxProvider) -> None:
    for length in LENGTHS:
        for seed in range(3):
            task = _task(length)
            demo = demonstrate(task, random.Random(seed), 0.25)
            episode: Played = await play(SPEC, task, [m for m in demo if m.role == "assistant"], provider)
            assert list(episode.messages[len(episode.opening.messages) :]) == demo


class _Played:
    """A script for the engine: a hauler's turns, and its summary wherever the rollout asked for one."""

    def __init__(self, task: Task, hauler: Hauler) -> None:
        self._hauler = hauler
        self._messages: Iterator[Message] = rehearse(task, hauler)
        self._asked = CHAT.delta([Message("user", COMPACTION.request)], last_id=-1)
        self._observation = ""

    def __call__(self, prompt_ids: Sequence[int], session: str, turn: int) -> list[int]:
        if list(prompt_ids[-len(self._asked) :]) == self._asked:
            return CHAT.turn(assistant(self._hauler.summarize(self._observation)))
        said = CHAT.turn(next(self._messages))
        self._observation = next(self._messages, Message("tool")).content
        return said


async def _rollout(provider: SandboxProvider, task: Task, hauler: Hauler) -> Trajectory:
    engine = ScriptedEngine(_Played(task, hauler), context_length=CONTEXT_TOKENS)
    job = Job("t", task, SPEC, seed=1)
    return await run_trajectory(job, House(engine, CHAT, provider, Budget(), compaction=COMPACTION))


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_small_context_is_compacted_and_the_early_fact_survives(provider: SandboxProvider, length: int) -> None:
    """One to three summaries of at most 24 tokens, depending on the length; every context ends within its limit."""
    for seed in range(4):
        task = replace(make_of(length, random.Random(seed)), id=f"{length}/{seed}")
        trajectory = await _rollout(provider, task, Hauler(task, random.Random(0), 0.0))
        assert trajectory.outcome.total() == 1.0
        assert trajectory.outcome.stop is Stop.DONE
        ends = [segment.ended_by for segment in trajectory.segments]
        assert ends == [SegmentEnd.COMPACTED] * COMPACTIONS[length] + [SegmentEnd.END]
        assert max(len(segment) for segment in trajectory.segments) <= CONTEXT_TOKENS
        summaries = [len(segment.spans[-1]) for segment in trajectory.segments[:-1]]
        assert max(summaries) <= 24
        assert list(trajectory_problems(trajectory, vocabulary=None)) == []


async def test_what_a_summary_lost_cannot_be_looked_up(provider: SandboxProvider) -> None:
    """The chain is walked to its end all the same: ``end`` is right, ``early`` is not."""
    task = _task(7)
    trajectory = await _rollout(provider, task, Hauler(task, random.Random(0), 0.0, summary_noise=1.0))
    assert {reward.name: reward.value for reward in trajectory.outcome.rewards} == {"check": 0, "early": 0, "end": 1}
    assert trajectory.outcome.total() == 0.0


async def test_demonstrations_for_imitation_are_encoded_as_the_rollout_would(
    provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contexts that the warm start imitates, id by id and mask by mask, mistakes and cut episodes included."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    from warm_start_base import SKILLS, demos

    skill = next(skill for skill in SKILLS if skill.suite is SPEC)
    stops: Counter[Stop] = Counter()
    for seed in range(12):
        task = SPEC.tasks.task("train", seed)
        noise = 0.1 * (seed % 4)
        rows = demos(CHAT, skill, task, random.Random(seed), noise)
        trajectory = await _rollout(provider, task, Hauler(task, random.Random(seed), noise))
        assert rows == [(s.token_ids.tolist(), s.sampled_mask.tolist()) for s in trajectory.segments]
        stops[trajectory.outcome.stop] += 1
    assert stops.keys() == {Stop.DONE, Stop.MAX_TURNS}


def test_the_recipe_of_compaction_is_what_the_policy_was_warmed_up_with() -> None:
    recipe = load_recipe("compaction")
    assert recipe.env.id == SPEC.id
    assert (recipe.compaction, recipe.policy.context_length) == (COMPACTION, CONTEXT_TOKENS)
    assert recipe.policy.init == "base"

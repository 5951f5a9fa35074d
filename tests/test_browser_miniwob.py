"""MiniWoB++ pages: the protocol, the thresholds, the clock, the seeds and the experts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from browser_site import browser_works, needs_browser

from glmgym.check import check, play
from glmgym.env import Opening, Task
from glmgym.errors import ConfigError
from glmgym.messages import Message, ToolCall, assistant
from glmgym_envs.browser import MINIWOB, MINIWOB_ALL, MiniWob
from glmgym_envs.browser.miniwob import MiniWobTasks, html_root, miniwob_task
from glmgym_envs.browser.miniwob_experts import EXPERTS
from glmgym_envs.browser.miniwob_pages import EXCLUDED, PAGES, threshold

__all__ = ["browser_works"]  # a fixture


def _call(name: str, **arguments: object) -> Message:
    return assistant("", ToolCall("call_0", name, arguments))


async def _act(env: MiniWob, name: str, **arguments: object) -> str:
    return (await env.step(_call(name, **arguments))).observation[0].content


async def _open(page: str, seed: int) -> MiniWob:
    env = MiniWob()
    await env.reset(miniwob_task(page, seed), None)
    return env


@needs_browser
async def test_a_wrong_card_is_no_success_though_its_raw_reward_is_positive() -> None:
    """Case E2: find-greatest gives 0.1 for a wrong card and 1 for the right one; only the second scores."""
    cards = (1, 2, 3)
    raws: dict[float, float] = {}
    for card in cards:
        env = await _open("find-greatest", 4)
        submit = env.view.find("button", "Submit").id
        turns = [_call("click", id=card), _call("click", id=submit)]
        episode = await play(MINIWOB, miniwob_task("find-greatest", 4), turns, None)
        await _act(env, "click", id=card)
        await _act(env, "click", id=submit)
        assert env.raw is not None
        raws[env.raw] = episode.outcome
        await env.close()
    assert raws == {0.1: 0.0, 1.0: 1.0}


@needs_browser
async def test_a_hidden_card_cannot_be_read() -> None:
    """The numbers are in the page from the start, in letters of size 0."""
    env = await _open("find-greatest", 4)
    before = [element.name for element in env.view.elements]
    assert before == ["", "", "", "Submit"]
    await _act(env, "click", id=1)
    assert sum(name.isdigit() for name in env.view.names) == 1
    await env.close()


@pytest.mark.parametrize(
    ("page", "raw", "is_success"),
    [
        ("find-greatest", 0.1, False),
        ("find-greatest", 1.0, True),
        ("odd-or-even", 2 / 3, False),
        ("odd-or-even", 1 / 3 + 1 / 3 + 1 / 3, True),
        ("click-checkboxes-large", 0.9, False),
        ("use-colorwheel", 0.99, False),
        ("click-test", 0.4, False),
        ("click-test", 0.5, True),
        ("click-test", 1.0, True),
        ("click-test", -1.0, False),
    ],
)
def test_success_is_a_threshold_of_the_page(page: str, raw: float, is_success: bool) -> None:
    """Case E2."""
    assert (raw >= threshold(page)) is is_success


def test_every_page_of_the_wheel_is_played_or_has_a_reason() -> None:
    found = {file.stem for file in (html_root() / "miniwob").glob("*.html")}
    assert set(PAGES) | set(EXCLUDED) == found
    assert not set(PAGES) & set(EXCLUDED)
    assert len(PAGES) >= 60
    assert set(EXPERTS) <= set(PAGES)
    assert len(EXPERTS) >= 12


def test_a_page_that_cannot_be_played_says_why() -> None:
    with pytest.raises(ConfigError, match=r"'draw-line': wants a point, and actions name elements"):
        miniwob_task("draw-line", 0)
    with pytest.raises(ConfigError, match=r"there is no such page; did you mean 'click-test'"):
        miniwob_task("click-tset", 0)


def test_tasks_are_pages_by_seeds_and_the_splits_share_no_seed() -> None:
    tasks = MiniWobTasks(["a", "b"], "two")
    assert (tasks.size("train"), tasks.size("heldout")) == (2_000, 40)
    small = MiniWobTasks(["click-test", "click-link"], "two")
    assert [small.task("train", i).data["page"] for i in range(3)] == ["click-test", "click-link", "click-test"]
    assert [small.task("train", i).data["seed"] for i in range(3)] == [0, 0, 1]
    seeds = [{small.task(split, i).data["seed"] for i in range(small.size(split))} for split in ("train", "heldout")]
    assert not seeds[0] & seeds[1]
    for index in (-1, 40):
        with pytest.raises(IndexError, match="there are 40"):
            small.task("heldout", index)


@needs_browser
async def test_a_seed_makes_the_page_and_another_makes_another() -> None:
    one, again, other = [await _open("login-user", seed) for seed in (5, 5, 6)]
    assert one.goal == again.goal
    assert one.view == again.view
    assert one.goal != other.goal
    for env in (one, again, other):
        await env.close()


@needs_browser
async def test_the_pages_time_stands_still_but_for_actions_and_waits() -> None:
    """The page gives 10 s by its own clock; a minute waited on it ends nothing, and half a real second is no time."""
    env = await _open("click-test", 1)
    now = "Date.now()"
    start = await env.drive(env.session.evaluate(now))
    await asyncio.sleep(0.5)
    assert await env.drive(env.session.evaluate(now)) == start
    for _ in range(6):
        assert "Click Me!" in await _act(env, "wait", seconds=10.0)
    waited = await env.drive(env.session.evaluate(now)) - start
    assert waited == 6 * 9_500  # from half a second after an action to ten seconds after it
    assert not env.is_over
    assert await _act(env, "click", id=1) == "The task is over."
    assert env.raw == 1.0
    assert await _act(env, "click", id=1) == "error: the task is over already"
    await env.close()


@needs_browser
async def test_the_clock_decides_whether_a_delay_was_kept() -> None:
    """button-delay wants 1 to 3 seconds between two clicks: at once fails, waiting solves, on any machine."""
    task = miniwob_task("button-delay", 3)
    assert (await play(MINIWOB, task, [_call("click", id=1), _call("click", id=2)], None)).outcome == 0.0
    assert MINIWOB.oracle is not None
    turns = await asyncio.to_thread(MINIWOB.oracle, task)
    assert [turn.tool_calls[0].name for turn in turns] == ["click", "wait", "click"]
    assert (await play(MINIWOB, task, turns, None)).outcome == 1.0


@needs_browser
async def test_the_suite_is_sound() -> None:
    """Oracle 1, doing nothing 0, twice, the same reset: one task of each split."""
    report = await check(MINIWOB, None, tasks=1)
    assert report.problems == ()
    assert report.episodes == 12


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(EXPERTS))
async def test_the_expert_solves_its_page(page: str) -> None:
    assert MINIWOB.oracle is not None
    for seed in (11, 1_000_003):
        task = miniwob_task(page, seed)
        episode = await play(MINIWOB, task, MINIWOB.oracle(task), None)
        assert episode.outcome == 1.0, episode.rewards


@needs_browser
@pytest.mark.slow
async def test_every_page_opens_alike_twice_and_reaches_nothing() -> None:
    async def see(task: Task) -> Opening:
        env = MiniWob()
        opening = await env.reset(task, None)
        assert env.session.visit.blocked == []
        assert env.goal
        assert env.view.elements
        await env.close()
        return opening

    for index, page in enumerate(PAGES):
        task = MINIWOB_ALL.tasks.task("heldout", index)
        assert task.family == page
        first, second = await asyncio.gather(see(task), see(task))
        assert first == second, page


async def test_data_that_is_no_page_and_seed_is_said() -> None:
    with pytest.raises(ConfigError, match="task odd: unknown key 'sead'; did you mean 'seed'"):
        await MiniWob().reset(replace(Task("odd"), data={"page": "click-test", "sead": 1, "seed": 1}), None)

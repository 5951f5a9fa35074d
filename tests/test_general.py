"""``general-basics``: the score of a reply in its parts, and demonstrations that go wrong in each of them."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from glmgym import Task, assistant
from glmgym.check import check, play
from glmgym.errors import ConfigError
from glmgym.registry import environment
from glmgym_envs.general import General, demonstrate, oracle
from glmgym_envs.general.basics import PADDING, make_of
from glmgym_envs.general.families import FAMILIES, Family

SPEC = environment("general-basics")
TASK = Task(
    "t",
    "Which is last: rope lamp? Begin with Answer: End with Bye. Use 4 words at most.",
    {
        "answer": ["lamp"],
        "choices": ["rope", "lamp"],
        "begin": "Answer:",
        "end": "Bye.",
        "max_words": 4,
        "anchor": "Answer: lamp. Bye.",
    },
)


@pytest.mark.parametrize(
    ("reply", "correct", "begins", "ends", "brief"),
    [
        ("Answer: lamp. Bye.", 1, 1, 1, 1),
        ("Answer: a lamp. Bye.", 1, 1, 1, 1),  # four words are not too many
        ("Answer: just a lamp. Bye.", 1, 1, 1, 0),  # five are
        ("  Answer: Lamp! Bye.\n", 1, 1, 1, 1),
        ("Answer: rope. Bye.", 0, 1, 1, 1),
        ("Answer: rope lamp. Bye.", 0, 1, 1, 1),  # naming every word is no answer
        ("Answer: lamps. Bye.", 0, 1, 1, 1),  # another word
        ("lamp", 1, 0, 0, 1),  # right without any style
        ("Reply: lamp. Bye.", 1, 0, 1, 1),
        ("answer: lamp. Bye.", 1, 0, 1, 1),
        ("Answer: lamp. Thanks.", 1, 1, 0, 1),
        ("Answer: Bye.", 0, 1, 1, 1),  # all style and nothing said
        ("", 0, 0, 0, 0),
        ("...", 0, 0, 0, 0),
    ],
)
async def test_each_part_of_the_score_is_its_own_rule(
    reply: str, correct: int, begins: int, ends: int, brief: int
) -> None:
    episode = await play(SPEC, TASK, [assistant(reply)], None)
    assert {reward.name: reward.value for reward in episode.rewards} == {
        "correct": correct,
        "format": begins,
        "courtesy": ends,
        "brevity": brief,
    }
    assert episode.total == pytest.approx(1.0 * correct + 0.1 * (begins + ends + brief))


async def test_style_is_shaping_and_the_answer_is_the_outcome() -> None:
    episode = await play(SPEC, TASK, [assistant("Answer: lamp. Bye.")], None)
    assert [reward.name for reward in episode.rewards if not reward.shaping] == ["correct"]


async def test_the_order_of_several_words_counts() -> None:
    task = Task("t", "Swap rope and lamp.", {**TASK.data, "answer": ["lamp", "rope"]})
    totals = [(await play(SPEC, task, [assistant(said)], None)).rewards[0].value for said in ("lamp rope", "rope lamp")]
    assert totals == [1.0, 0.0]


async def test_data_that_does_not_fit_names_the_key() -> None:
    with pytest.raises(ConfigError, match="task t: max_words = 0"):
        await play(SPEC, Task("t", "", {**TASK.data, "max_words": 0}), [assistant("x")], None)


async def test_the_suite_is_sound() -> None:
    report = await check(SPEC, None, tasks=12)
    assert report.problems == ()
    assert len(report.task_ids) == 24


def test_every_family_is_in_both_splits_and_no_heldout_task_is_trained_on() -> None:
    heldout = [SPEC.tasks.task("heldout", i) for i in range(SPEC.tasks.size("heldout"))]
    train = [SPEC.tasks.task("train", i) for i in range(3000)]
    names = {family.name for family in FAMILIES}
    counts = Counter(task.family for task in heldout)
    assert counts.keys() == names == {task.family for task in train}
    assert min(counts.values()) >= 55  # 85.3 expected of each
    assert len({task.instruction for task in heldout}) == 512
    assert not {task.instruction for task in heldout} & {task.instruction for task in train}
    assert {task.domain for task in heldout + train} == {"general"}
    assert max(len(task.instruction) for task in heldout) <= 140


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_wrong_answer_and_every_slip_cost_what_they_should(family: Family) -> None:
    """With certain mistakes each part is wrong; an answer is never right by accident."""
    for seed in range(40):
        task = make_of(family, random.Random(seed))
        assert (await play(SPEC, task, oracle(task), None)).total == pytest.approx(1.3)
        (slipped,) = demonstrate(task, random.Random(seed), 1.0)
        assert any(padding in slipped.content for padding in PADDING)
        assert (await play(SPEC, task, [slipped], None)).total == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.15, 0.4])
async def test_noise_is_the_share_of_each_mistake(noise: float) -> None:
    rng, sums = random.Random(3), Counter[str]()
    for index in range(1000):
        task = SPEC.tasks.task("train", index)
        for reward in (await play(SPEC, task, demonstrate(task, rng, noise), None)).rewards:
            sums[reward.name] += int(reward.value)
    for name, count in sums.items():
        assert abs(count / 1000 - (1 - noise)) <= (0.05 if noise else 0.0), name


@pytest.mark.parametrize(
    ("family", "fact", "question", "is_asked"),
    [
        ("where", r"[Tt]he (\w+) (?:is )?at the (\w+)", r"Where is the (\w+)", "first"),
        ("who", r"[Tt]he (\w+) (?:has )?the (\w+)[,.]", r"Who has the (\w+)", "second"),
    ],
)
def test_the_fact_that_is_asked_for_is_the_answer(family: str, fact: str, question: str, is_asked: str) -> None:
    (row,) = [row for row in FAMILIES if row.name == family]
    for seed in range(40):
        task = make_of(row, random.Random(seed))
        pairs = re.findall(fact, task.instruction)
        known = dict(pairs) if is_asked == "first" else {second: first for first, second in pairs}
        assert len(known) == 2
        (asked,) = re.findall(question, task.instruction)
        assert task.data["answer"] == [known[asked]]


def test_the_system_prompt_is_short() -> None:
    assert len(General.system) <= 40

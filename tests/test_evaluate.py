"""What an evaluation counts: failures apart, families, pass@k, every task played."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from episodes import CHAT, DONE, Echo, spec_of

from glmgym.engines import Fault, ScriptedEngine
from glmgym.env import Step
from glmgym.errors import ConfigError
from glmgym.evaluation import evaluate, report
from glmgym.messages import Message, assistant
from glmgym.rollout import House
from glmgym.trajectory import Failure, Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory

OTHER = CHAT.turn(assistant("no idea"))


def attempt(task: int, value: float | None, family: str = "") -> Trajectory:
    """A graded attempt at a task, or a failed one (``None``)."""
    failed = Outcome(Stop.FAILED, failure=Failure("sandbox", "OSError", "no box"))
    outcome = failed if value is None else Outcome(Stop.DONE, (Reward("r", value),))
    segment = Segment((Span(SpanKind.PROMPT, np.array([1], np.int32)),))
    return Trajectory(f"t{task}", f"task-{task}", "echo-v0", (segment,), outcome, family=family)


def test_failures_are_listed_and_never_averaged_in() -> None:
    """O5, E1: rewards 1, 0 and a failure are 1/2, not 1/3."""
    found = report([attempt(0, 1.0, "a"), attempt(1, 0.0, "b"), attempt(2, None, "b")], "echo-v0", "heldout", 1)
    assert (found.overall.mean, found.overall.count) == (0.5, 2)
    assert {name: (row.mean, row.count) for name, row in found.families.items()} == {"a": (1.0, 1), "b": (0.0, 1)}
    assert found.failures == {"sandbox": 1}
    assert found.stops == {"done": 2, "failed": 1}


def test_an_evaluation_of_failures_only_has_no_score() -> None:
    """Plain JSON without NaN: the mean does not exist."""
    found = report([attempt(0, None)], "echo-v0", "heldout", 1)
    assert math.isnan(found.overall.mean)
    summary = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert summary["overall"] == {"mean": None, "low": None, "high": None, "attempts": 0, "tasks": 0}
    assert summary["failures"] == {"sandbox": 1}


def test_pass_at_k_is_per_task_and_says_over_how_many() -> None:
    """E1: task 0 solved 1 of 2, task 1 2 of 2, task 2 has one attempt left: pass@2 is (1 + 1) / 2 over 2 tasks."""
    values = [(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0), (2, 0.999), (2, None)]
    found = report([attempt(task, value, "f") for task, value in values], "echo-v0", "heldout", 2)
    assert found.passes.pass_at == {1: (pytest.approx((0.5 + 1 + 0) / 3), 3), 2: (1.0, 2)}
    assert found.passes.pass_hat == {1: (pytest.approx(0.5), 3), 2: (0.5, 2)}
    assert found.family_passes["f"] == found.passes
    assert found.summary()["pass_at_k"] == {"1": {"mean": 0.5, "tasks": 3}, "2": {"mean": 1.0, "tasks": 2}}


@pytest.mark.parametrize(("attempts", "expected"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_which_k_a_table_shows(attempts: int, expected: list[int]) -> None:
    assert list(report([attempt(0, 1.0)], "echo-v0", "heldout", attempts).passes.pass_at) == expected


class Counted(Echo):
    now, most = 0, 0

    async def step(self, reply: Message) -> Step:
        Counted.now += 1
        Counted.most = max(Counted.most, Counted.now)
        await asyncio.sleep(0.002)
        Counted.now -= 1
        return await super().step(reply)


async def test_every_task_is_played_and_counted() -> None:
    """12 tasks, 2 attempts each: even ones are solved, odd ones are not, attempts at task 4 crash the engine."""

    def answers(prompt: Sequence[int], session: str, turn: int) -> Sequence[int]:
        return DONE if int(session.split("-")[2]) % 2 == 0 else OTHER

    engine = ScriptedEngine(answers, fault=lambda session, turn: Fault.CRASH if "-4-" in session else None)
    ended: list[str] = []
    found, played = await evaluate(
        spec_of(Counted),
        House(engine, CHAT, None),
        num_tasks=12,
        attempts=2,
        max_live=3,
        on_finished=lambda trajectory: ended.append(trajectory.id),
    )
    assert sorted(ended) == sorted(f"eval-heldout-{task}-{k}" for task in range(12) for k in range(2))
    assert (found.overall.count, found.overall.tasks) == (22, 11)
    assert found.overall.mean == pytest.approx(5 / 11)
    assert {name: row.mean for name, row in found.families.items()} == {"even": 1.0, "odd": 0.0}
    assert found.failures == {"engine": 2}
    assert {t.group_id for t in played} == {f"heldout/{task}" for task in range(12)}
    assert len({t.provenance.sampling["seed"] for t in played}) == 24
    assert Counted.most == 3


async def test_more_tasks_than_there_are_is_a_mistake_of_the_user() -> None:
    house = House(ScriptedEngine([DONE]), CHAT, None)
    with pytest.raises(ConfigError, match="echo-v0 has 1000 heldout tasks; 1001 were asked for"):
        await evaluate(spec_of(Echo), house, num_tasks=1001)

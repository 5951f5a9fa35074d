"""How a trajectory ends: every stop rule on both sides of its border, failures by origin, and what is cleaned up."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from episodes import CHAT, DONE, LOOK, Echo, is_closed, play, spec_of

from glmgym.engine import GenerateParams, Generation
from glmgym.engines import Fault, ScriptedEngine
from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ConfigError, EngineFailure, GlmgymError, JudgeFailure, SandboxFailure
from glmgym.messages import Message, ToolCall, assistant, user
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.sandbox import BoxSpec, Sandbox
from glmgym.settings import parse_settings
from glmgym.tool import tool
from glmgym.trajectory import Failure, Reward, SpanKind, Stop, Trajectory
from glmgym_sandboxes.fake import FakeProvider, FakeSandbox

PROMPT = len(CHAT.opening([user("task 0")], [Echo.tools[0].spec]))
TURN = len(LOOK)  # sampled tokens of a turn that calls the tool
ANSWER = len(DONE)
REPLY = len(CHAT.delta([Message("tool", "nothing here")], last_id=LOOK[-1]))  # what the tool's reply adds


def failure_of(trajectory: Trajectory) -> Failure:
    failure = trajectory.outcome.failure
    assert failure is not None
    assert trajectory.outcome.stop is Stop.FAILED
    assert trajectory.outcome.rewards == ()
    with pytest.raises(GlmgymError, match="no reward"):
        trajectory.outcome.total()
    return failure


# Stop rules


@pytest.mark.parametrize(
    ("budget", "turns", "stop", "sampled", "steps"),
    [
        # Turns: the limit, one less, and an answer in the very last turn.
        ({"max_turns": 2}, [LOOK, LOOK], Stop.MAX_TURNS, 2 * TURN, 2),
        ({"max_turns": 2}, [LOOK, DONE], Stop.DONE, TURN + ANSWER, 2),
        ({"max_turns": 1}, [LOOK], Stop.MAX_TURNS, TURN, 1),
        ({}, [LOOK] * 16, Stop.MAX_TURNS, 16 * TURN, 16),  # the environment's own limit
        ({"max_turns": 17}, [LOOK] * 17, Stop.MAX_TURNS, 17 * TURN, 17),
        # Context: a turn that is cut by it, that fills it, an observation that leaves room for 0 tokens and for 1.
        ({"max_context_tokens": PROMPT + 1}, [LOOK], Stop.CONTEXT_FULL, 1, 0),
        ({"max_context_tokens": PROMPT + TURN - 1}, [LOOK], Stop.CONTEXT_FULL, TURN - 1, 0),
        ({"max_context_tokens": PROMPT + TURN}, [LOOK], Stop.CONTEXT_FULL, TURN, 1),
        ({"max_context_tokens": PROMPT + ANSWER}, [DONE], Stop.DONE, ANSWER, 1),
        ({"max_context_tokens": PROMPT + TURN + REPLY}, [LOOK], Stop.CONTEXT_FULL, TURN, 1),
        ({"max_context_tokens": PROMPT + TURN + REPLY + 1}, [LOOK, LOOK], Stop.CONTEXT_FULL, TURN + 1, 1),
        # Sampled tokens: a turn that is cut by the budget, that spends it, and that leaves 1 token.
        ({"max_sampled_tokens": TURN - 1}, [LOOK], Stop.BUDGET, TURN - 1, 0),
        ({"max_sampled_tokens": TURN}, [LOOK], Stop.BUDGET, TURN, 1),
        ({"max_sampled_tokens": TURN + 1}, [LOOK, LOOK], Stop.BUDGET, TURN + 1, 1),
        ({"max_sampled_tokens": TURN + ANSWER}, [LOOK, DONE], Stop.DONE, TURN + ANSWER, 2),
        # Two limits at once: the rule that comes first in the list names the stop.
        ({"max_sampled_tokens": TURN, "max_turns": 1}, [LOOK], Stop.MAX_TURNS, TURN, 1),
        (
            {"max_sampled_tokens": TURN - 1, "max_context_tokens": PROMPT + TURN - 1},
            [LOOK],
            Stop.CONTEXT_FULL,
            TURN - 1,
            0,
        ),
        ({"max_sampled_tokens": TURN, "max_context_tokens": PROMPT + TURN}, [LOOK], Stop.BUDGET, TURN, 1),
        # A cap per turn that equals what is left is the budget's end, not a cut turn that plays on.
        ({"max_turn_tokens": 3, "max_sampled_tokens": 3}, [LOOK], Stop.BUDGET, 3, 0),
        ({"max_turn_tokens": 3, "max_sampled_tokens": 4}, [LOOK, LOOK], Stop.BUDGET, 4, 1),
    ],
)
async def test_each_limit_stops_exactly_at_its_border(
    budget: dict[str, int], turns: list[list[int]], stop: Stop, sampled: int, steps: int
) -> None:
    env = Echo()
    trajectory, engine = await play(env, turns, budget=Budget(**budget))
    assert trajectory.outcome.stop is stop
    assert trajectory.num_sampled == sampled == len(engine.sampled)
    assert env.steps == steps
    assert trajectory.outcome.total() == (1.0 if stop is Stop.DONE else 0.0)  # graded, whatever the stop
    assert sum(map(len, trajectory.segments)) <= budget.get("max_context_tokens", 4096)


@pytest.mark.parametrize(("room", "stop"), [(0, Stop.FAILED), (1, Stop.CONTEXT_FULL)])
async def test_an_opening_that_fills_the_context_is_the_environments_failure(room: int, stop: Stop) -> None:
    """The smaller of the budget's and the engine's context counts."""
    trajectory, _ = await play(Echo(), [LOOK], context_length=PROMPT + room, budget=Budget(max_context_tokens=9999))
    assert trajectory.outcome.stop is stop
    if room == 0:
        failure = failure_of(trajectory)
        assert failure.origin == "env"
        assert f"the opening prompt has {PROMPT} tokens; the context holds {PROMPT}" in failure.message


async def test_the_environment_may_cut_the_episode() -> None:
    class Impatient(Echo):
        async def step(self, reply: Message) -> Step:
            return Step(truncated=True)

    trajectory, _ = await play(Impatient(), [LOOK])
    assert trajectory.outcome.stop is Stop.MAX_TURNS
    assert trajectory.outcome.total() == 0.0


@pytest.mark.parametrize("key", ["max_turns", "max_turn_tokens", "max_sampled_tokens", "max_context_tokens"])
def test_a_budget_of_nothing_is_refused_when_it_is_read(key: str) -> None:
    assert getattr(parse_settings(Budget, {key: 1}, where="recipe"), key) == 1
    with pytest.raises(ConfigError, match=f"{key} = 0"):
        parse_settings(Budget, {key: 0}, where="recipe")


# Wall time


async def test_wall_time_aborts_a_generation_and_keeps_its_partial_ids() -> None:
    trajectory, engine = await play(
        Echo(),
        [LOOK, LOOK],
        budget=Budget(wall_s=1.0),  # the first turn takes a millisecond
        fault=lambda session, turn: Fault.STALL if turn else None,
    )
    assert trajectory.outcome.stop is Stop.BUDGET
    assert engine.sampled == [*LOOK, *LOOK[: TURN // 2]]
    (segment,) = trajectory.segments
    assert segment.token_ids[segment.sampled_mask].tolist() == engine.sampled
    assert trajectory.outcome.total() == 0.0


class Slow(Echo):
    """Each phase takes its own time; ``fails`` is raised when it is told to stop."""

    def __init__(self, reset: float = 0, step: float = 0, score: float = 0, fails: Exception | None = None) -> None:
        self.delays = {"reset": reset, "step": step, "score": score}
        self.fails = fails

    async def pause(self, phase: str) -> None:
        try:
            await asyncio.sleep(self.delays[phase])
        except asyncio.CancelledError:
            if self.fails is not None:
                raise self.fails from None
            raise

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        await self.pause("reset")
        return await super().reset(task, box)

    async def step(self, reply: Message) -> Step:
        await self.pause("step")
        return await super().step(reply)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        await self.pause("score")
        return await super().score(view)


async def test_a_step_that_outlives_the_wall_time_ends_the_episode_and_is_graded() -> None:
    trajectory, _ = await play(Slow(step=60, fails=ValueError("late")), [DONE], budget=Budget(wall_s=1.0))
    assert trajectory.outcome.stop is Stop.BUDGET
    assert trajectory.outcome.total() == 1.0  # the answer had been given


async def test_a_time_out_inside_the_environment_is_not_the_wall_time() -> None:
    class Impatient(Echo):
        async def step(self, reply: Message) -> Step:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
            return Step()

    trajectory, _ = await play(Impatient(), [LOOK])
    assert (failure_of(trajectory).origin, failure_of(trajectory).type) == ("env", "TimeoutError")


async def test_grading_has_its_own_time() -> None:
    """X6: the policy used up its 0.5 s; scoring takes 0.6 s of its own and counts."""
    trajectory, _ = await play(Slow(step=60, score=0.6), [DONE], budget=Budget(wall_s=0.5, score_s=30))
    assert (trajectory.outcome.stop, trajectory.outcome.total()) == (Stop.BUDGET, 1.0)
    late, _ = await play(Slow(score=60), [DONE], budget=Budget(wall_s=30, score_s=0.1))
    failure = failure_of(late)
    assert (failure.origin, failure.type) == ("scorer", "OutOfTime")
    assert "score train/0" in failure.message
    assert "0.1 s" in failure.message


async def test_a_slow_reset_takes_nothing_from_the_policys_time() -> None:
    trajectory, _ = await play(Slow(reset=1.1, step=1.1), [DONE], budget=Budget(wall_s=2.0))
    assert trajectory.outcome.stop is Stop.DONE
    stuck, _ = await play(Slow(reset=60), [DONE], budget=Budget(wall_s=0.05))
    assert (failure_of(stuck).origin, failure_of(stuck).type) == ("env", "OutOfTime")


class Deaf(ScriptedEngine):
    """Ignores aborts."""

    is_asked = False

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        self.is_asked = True
        return await super().generate(prompt_ids, params, session=session)

    async def abort(self, session: str) -> None:
        return None


async def test_an_engine_that_ignores_an_abort_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glmgym.rollout._GRACE_S", 0.05)
    spec = spec_of(Echo)
    engine = Deaf([LOOK], fault=lambda session, turn: Fault.STALL)
    job = Job("t1", spec.tasks.task("train", 0), spec, seed=0)
    trajectory = await run_trajectory(job, House(engine, CHAT, None, Budget(wall_s=0.05)))
    assert (failure_of(trajectory).origin, failure_of(trajectory).type) == ("engine", "OutOfTime")


# Failures by origin


def answering(method: str, do: Callable[[], Any]) -> Echo:
    """An environment one of whose methods does or returns something else."""

    async def other(self: Echo, *arguments: object) -> Any:
        return do()

    env = Echo()
    setattr(env, method, other.__get__(env))
    return env


def raising(error: Exception) -> Callable[[], Any]:
    def do() -> Any:
        raise error

    return do


@pytest.mark.parametrize(
    ("method", "do", "origin", "says"),
    [
        ("reset", raising(KeyError("gone")), "env", "reset echo-v0 on train/0: KeyError: 'gone'"),
        ("reset", lambda: None, "env", "reset echo-v0 on train/0: AttributeError"),
        ("step", raising(KeyError("gone")), "env", "step 1 of echo-v0 on train/0: KeyError: 'gone'"),
        ("step", lambda: None, "env", "step 1 of echo-v0 on train/0: AttributeError"),
        ("step", Step, "env", "neither an observation nor an end"),
        ("step", raising(JudgeFailure("no answer")), "judge", "no answer"),  # attributed already: passes unchanged
        ("score", raising(KeyError("gone")), "scorer", "score train/0: KeyError: 'gone'"),
        ("score", raising(AssertionError("wrong")), "scorer", "AssertionError: wrong"),
        ("score", lambda: (), "scorer", "returned ()"),
        ("score", lambda: None, "scorer", "TypeError"),
        ("score", lambda: Reward("done", 1.0), "scorer", "TypeError"),
        ("score", lambda: (1.0,), "scorer", "returned (1.0,)"),
        ("score", lambda: (Reward("done", float("nan")),), "scorer", "reward 'done' is not finite"),
        ("score", raising(SandboxFailure("no box")), "sandbox", "no box"),
    ],
)
async def test_what_an_environment_does_wrong_is_a_failure_and_never_a_reward(
    method: str, do: Callable[[], Any], origin: str, says: str
) -> None:
    trajectory, _ = await play(answering(method, do), [DONE])
    failure = failure_of(trajectory)
    assert failure.origin == origin
    assert says in failure.message
    assert trajectory.num_sampled == (0 if method == "reset" else ANSWER)  # what was collected is kept


async def test_a_crash_of_the_engine_keeps_the_turns_before_it() -> None:
    trajectory, _ = await play(Echo(), [LOOK, LOOK], fault=lambda session, turn: Fault.CRASH if turn else None)
    failure = failure_of(trajectory)
    assert (failure.origin, failure.retryable) == ("engine", True)
    assert trajectory.num_sampled == TURN


async def test_an_engine_that_cannot_release_a_session_is_a_failure_of_that_trajectory() -> None:
    class Broken(ScriptedEngine):
        async def release(self, session: str) -> None:
            raise OSError("connection reset")

    spec = spec_of(Echo)
    job = Job("t1", spec.tasks.task("train", 0), spec, seed=0)
    failure = failure_of(await run_trajectory(job, House(Broken([DONE]), CHAT, None)))
    assert (failure.origin, failure.type) == ("engine", "OSError")


# Boxes and sessions


@tool
async def touch(box: Sandbox) -> str:
    """Write a file."""
    await box.write("/x", b"")
    return "written"


class Boxed(Echo):
    """Works in its box, and opens a fresh one to grade."""

    tools = (touch,)
    kill = False

    async def step(self, reply: Message) -> Step:
        if self.kill:
            assert isinstance(self.box, FakeSandbox)
            self.box.kill("out of memory")
        return await super().step(reply)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        fresh = await view.open_box()
        assert fresh is not view.box
        await fresh.write("/y", b"")
        return await super().score(view)


TOUCH = CHAT.turn(assistant("", ToolCall("call_0", "touch")))


async def test_every_box_is_closed_and_the_graders_is_a_fresh_one() -> None:
    provider = FakeProvider()
    trajectory, _ = await play(Boxed(), [TOUCH, DONE], provider=provider)
    assert trajectory.outcome.total() == 1.0
    assert trajectory.provenance.image_digest == "fake"
    assert [await is_closed(box) for box in provider.boxes] == [True, True]


async def test_a_dead_box_is_the_sandboxes_failure() -> None:
    """X2: the box dies under a tool; nothing after it is graded."""
    provider, env = FakeProvider(), Boxed()
    env.kill = True
    trajectory, _ = await play(env, [TOUCH, DONE], provider=provider)
    failure = failure_of(trajectory)
    assert (failure.origin, failure.type, failure.retryable) == ("sandbox", "SandboxDead", True)
    assert "out of memory" in failure.message
    assert len(provider.boxes) == 1
    assert trajectory.num_sampled == len(TOUCH)


class NoBoxes(FakeProvider):
    async def open(self, spec: BoxSpec) -> FakeSandbox:
        raise OSError("no space left on device")


async def test_a_box_that_cannot_be_opened_is_the_sandboxes_failure() -> None:
    trajectory, engine = await play(Boxed(), [DONE], provider=NoBoxes())
    failure = failure_of(trajectory)
    assert (failure.origin, failure.type) == ("sandbox", "OSError")
    assert failure.message == "open a box of fake: OSError: no space left on device"
    assert trajectory.segments == ()
    assert engine.prompts == []


async def test_a_run_without_a_backend_says_so() -> None:
    class Graded(Echo):
        async def score(self, view: ScoreView) -> tuple[Reward, ...]:
            await view.open_box()
            return await super().score(view)

    trajectory, _ = await play(Graded(), [DONE])
    assert failure_of(trajectory).origin == "sandbox"
    assert "this run has no sandbox backend" in failure_of(trajectory).message


async def cancelled_during(phase: str, provider: FakeProvider, engine: Deaf) -> None:
    """Start an episode, cancel it once ``phase`` waits, and see the cancellation come out."""
    reached = asyncio.Event()

    class Waiting(Boxed):
        async def wait(self, here: str, go_on: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
            if here == phase:
                reached.set()
                await asyncio.Event().wait()
            return await go_on(*arguments)

        async def reset(self, task: Task, box: Sandbox | None) -> Opening:
            return await self.wait("reset", super().reset, task, box)  # type: ignore[no-any-return]

        async def step(self, reply: Message) -> Step:
            return await self.wait("step", super().step, reply)  # type: ignore[no-any-return]

        async def score(self, view: ScoreView) -> tuple[Reward, ...]:
            await view.open_box()
            return await self.wait("score", super().score, view)  # type: ignore[no-any-return]

    spec = spec_of(Waiting, box=BoxSpec())
    job = Job("t1", spec.tasks.task("train", 0), spec, seed=0)
    task = asyncio.ensure_future(run_trajectory(job, House(engine, CHAT, provider)))
    if phase == "generate":
        async with asyncio.timeout(60):
            while not engine.is_asked:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
    else:
        await asyncio.wait_for(reached.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("phase", ["reset", "generate", "step", "score"])
async def test_cancellation_closes_the_boxes_and_releases_the_session(phase: str) -> None:
    provider = FakeProvider()
    stalls = [phase == "generate"]  # only the first request
    engine = Deaf([DONE], fault=lambda session, turn: Fault.STALL if stalls and stalls.pop() else None)
    await cancelled_during(phase, provider, engine)
    assert [await is_closed(box) for box in provider.boxes] == [True] * (2 if phase == "score" else 1)
    again = await engine.generate([1], GenerateParams(max_tokens=99), session="t1")  # a released session is at turn 0
    assert again.token_ids.tolist() == DONE
    with pytest.raises(EngineFailure, match="1 answers"):
        await engine.generate([1], GenerateParams(max_tokens=99), session="t1")


async def test_what_a_cancelled_environment_still_raises_is_not_left_behind() -> None:
    """S2: no exception that nobody retrieved."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    playing = asyncio.ensure_future(play(Slow(step=60, fails=ValueError("late")), [DONE]))
    await asyncio.sleep(0.05)
    playing.cancel()
    await asyncio.wait({playing})
    await asyncio.sleep(0.01)
    del playing  # its traceback holds the task whose exception is looked for
    gc.collect()
    assert complaints == []


async def test_a_turn_of_no_tokens_is_no_span() -> None:
    """An engine that strips the stop token of an empty turn: nothing was sampled, and the marker is inserted."""
    empty = [LOOK[-1]]
    fault = lambda session, turn: None if turn else Fault.STRIPPED_STOP  # noqa: E731

    class Patient(Echo):
        async def step(self, reply: Message) -> Step:
            step = await super().step(reply)
            return step if reply.content else Step((Message("tool", "well?"),))

    trajectory, engine = await play(Patient(), [empty, DONE], fault=fault)
    (segment,) = trajectory.segments
    assert [span.kind for span in segment.spans] == [SpanKind.PROMPT, SpanKind.OBSERVATION, SpanKind.ACTION]
    assert engine.prompts[1].count(LOOK[-1]) == 1
    assert trajectory.num_sampled == ANSWER

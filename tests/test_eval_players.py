"""Policies without tokens play by the rollout's own rules: scripts, and endpoints that behave and misbehave."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from episodes import Echo, Numbered, look, spec_of

from glmgym.env import ScoreView, Step, Task
from glmgym.errors import ConfigError, EngineFailure, UnknownName
from glmgym.evaluation import MessagePlayer, Reply, collect_attempts
from glmgym.evaluation.attempt import Attempt
from glmgym.evaluation.endpoint import EndpointPolicy, EndpointSettings, read_completion
from glmgym.evaluation.model_server import completion, serve_model
from glmgym.evaluation.player import ContextFull, Policy
from glmgym.evaluation.scripted import RandomPolicy, random_arguments, scripted_policy
from glmgym.messages import Message, ToolCall, ToolSpec, assistant, tool_result
from glmgym.registry import EnvSpec
from glmgym.rewards import Answer
from glmgym.rollout import Budget, Job, Transcript
from glmgym.tool import tool
from glmgym.trajectory import Reward, Stop, Trajectory

LOOK = ToolCall("c1", "look", {"where": "there"})


class Lines:
    """A policy of fixed turns; an exception among them is raised."""

    name, digest = "lines", "lines"

    def __init__(self, *lines: Reply | Exception | float) -> None:
        self._lines = lines
        self.asked: list[int] = []

    def speaker(self, job: Job) -> Lines:
        self._left = iter(self._lines)
        return self

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, max_tokens: int, seed: int
    ) -> Reply | None:
        self.asked.append(max_tokens)
        line = next(self._left, None)
        if isinstance(line, float):
            await asyncio.sleep(line)
            return None
        if isinstance(line, Exception):
            raise line
        return line

    async def close(self) -> None:
        return


async def played(policy: Policy, *, budget: Budget | None = None, spec: EnvSpec | None = None) -> Transcript:
    spec = spec or spec_of(Echo)
    job = Job("j", spec.tasks.task("heldout", 0), spec, seed=5)
    trajectory, transcript = await MessagePlayer(policy, None, budget or Budget()).play(job)
    assert trajectory is None
    return transcript


def turn(*calls: ToolCall, content: str = "", tokens: int = 0, cut: bool = False) -> Reply:
    return Reply(assistant(content, *calls), prompt_tokens=7, sampled_tokens=tokens, cut=cut)


async def test_an_episode_on_messages() -> None:
    found = await played(Lines(turn(LOOK, tokens=3), turn(content="done", tokens=2)))
    assert found.outcome.stop is Stop.DONE
    assert found.outcome.total() == 1.0
    assert [message.role for message in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert [(r.prompt_tokens, r.sampled_tokens) for r in found.requests] == [(7, 3), (7, 2)]
    assert found.tools[0].name == "look"


@pytest.mark.parametrize(
    ("lines", "budget", "stop", "turns"),
    [
        ((), {}, Stop.DONE, 0),  # nothing to say
        ((turn(LOOK),) * 9, {"max_turns": 2}, Stop.MAX_TURNS, 2),
        ((turn(LOOK, tokens=5), turn(LOOK, tokens=5)), {"max_sampled_tokens": 10}, Stop.BUDGET, 2),
        ((turn(LOOK, tokens=5), turn(content="done", tokens=4)), {"max_sampled_tokens": 10}, Stop.DONE, 2),
        ((turn(content="do", tokens=10, cut=True),), {"max_sampled_tokens": 10}, Stop.BUDGET, 1),
        ((turn(LOOK), ContextFull("too many tokens")), {}, Stop.CONTEXT_FULL, 1),
        ((turn(LOOK), 30.0), {"wall_s": 1.0}, Stop.BUDGET, 1),
    ],
)
async def test_stop_rules_are_the_rollouts(lines: Any, budget: dict[str, Any], stop: Stop, turns: int) -> None:
    """Each of these is graded: what the policy did not manage is a score, no failure."""
    found = await played(Lines(*lines), budget=Budget(**budget))
    assert found.outcome.stop is stop
    assert found.outcome.is_valid
    assert sum(message.role == "assistant" for message in found.messages) == turns


async def test_a_turn_gets_what_is_left_of_the_budget() -> None:
    lines = Lines(turn(LOOK, tokens=6), turn(LOOK, tokens=3), turn(content="done"))
    await played(lines, budget=Budget(max_turn_tokens=8, max_sampled_tokens=10))
    assert lines.asked == [8, 4, 1]


@pytest.mark.parametrize(("error", "type"), [(EngineFailure("no model"), "EngineFailure"), (OSError("x"), "OSError")])
async def test_what_breaks_is_a_failure_without_a_reward(error: Exception, type: str) -> None:
    found = await played(Lines(turn(LOOK), error))
    assert found.outcome.failure is not None
    assert (found.outcome.failure.origin, found.outcome.failure.type) == ("engine", type)
    assert not found.outcome.rewards


async def test_flags_count_failed_and_guarded_calls() -> None:
    """H6: what a guard answered is in the record."""

    class Guarded(Echo):
        async def step(self, reply: Message) -> Step:
            if not reply.tool_calls:
                return Step(terminated=True)
            results = tuple(tool_result(call, "(no output)") for call in reply.tool_calls)
            return Step(results, info={"failed_calls": 2, "guarded": ["rule", "rule", "rule"]})

    found = await played(Lines(turn(LOOK), turn(LOOK), turn(content="done")), spec=spec_of(Guarded))
    assert found.flags == {"failed_calls": 4, "guarded": 6}

    class Doubted(Echo):
        async def score(self, view: ScoreView) -> tuple[Reward, ...]:
            return (Reward("tests", 0.0, reason="flagged: a canary passed"), Reward("more", 0.0, reason="none"))

    doubted = await played(Lines(turn(content="done")), spec=spec_of(Doubted))
    assert doubted.flags == {"flagged_grade": 1}
    clean = await played(Lines(turn(LOOK), turn(content="done")))
    assert clean.flags == {}


async def test_the_expert_plays_the_oracle_and_needs_one() -> None:
    spec = EnvSpec("e-v0", Echo, Numbered(), oracle=lambda task: [assistant("", LOOK), assistant("done")])
    found = await played(scripted_policy("scripted:expert"), spec=spec)
    assert found.outcome.total() == 1.0
    with pytest.raises(ConfigError, match="echo-v0 has no oracle"):
        await played(scripted_policy("scripted:expert"))
    with pytest.raises(UnknownName, match="did you mean 'expert'"):
        scripted_policy("scripted:expart")


async def test_a_broken_oracle_is_a_failure() -> None:
    def oracle(task: Task) -> list[Message]:
        raise KeyError("x")

    found = await played(scripted_policy("scripted:expert"), spec=EnvSpec("e-v0", Echo, Numbered(), oracle=oracle))
    assert found.outcome.failure is not None
    assert found.outcome.failure.origin == "env"


@tool
async def many(a: str, b: int, c: float, d: bool, e: list[int], f: dict[str, Any], g: str | None = None) -> str:
    """Take everything."""
    return "ok"


def test_random_arguments_are_valid() -> None:
    for seed in range(200):
        assert many.problem(random_arguments(many.spec.parameters, random.Random(seed))) is None
        assert look.problem(random_arguments(look.spec.parameters, random.Random(seed))) is None


async def test_the_random_policy_is_the_same_for_a_seed_and_ends() -> None:
    spec = spec_of(Echo, max_turns=40)
    one, two = [await played(RandomPolicy(), spec=spec) for _ in range(2)]
    assert one.messages == two.messages
    assert one.flags == {}
    assert any(message.role == "tool" for message in one.messages)


def settings(url: str, **changes: Any) -> EndpointSettings:
    return EndpointSettings(**{"url": url, "model": "m", "backoff_s": 0.001, "timeout_s": 5.0, "retries": 2, **changes})


async def asked(rule: Any, **changes: Any) -> Transcript:
    async with serve_model(rule) as url:
        policy = EndpointPolicy(settings(url, **changes))
        try:
            return await played(policy)
        finally:
            await policy.close()


async def test_a_model_behind_an_endpoint_plays_with_tools() -> None:
    """The second request holds the call, with its arguments as text, and the result under the call's id."""
    requests: list[Mapping[str, Any]] = []

    def rule(request: Mapping[str, Any]) -> Message:
        requests.append(request)
        return assistant("done") if len(requests) > 1 else assistant("Let me see", LOOK, reasoning="hm")

    found = await asked(rule)
    assert found.outcome.total() == 1.0
    assert requests[0]["tools"][0]["function"]["name"] == "look"
    assert requests[0]["model"] == "m"
    assert requests[0]["max_tokens"] == 256
    called, result = requests[1]["messages"][-2:]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"where": "there"}
    assert result == {"role": "tool", "content": "nothing there", "tool_call_id": "c1"}
    assert found.messages[1].reasoning == "hm"
    assert all(request.prompt_tokens > 0 and request.sampled_tokens > 0 for request in found.requests)
    assert requests[0]["seed"] != requests[1]["seed"]


@pytest.mark.parametrize(
    ("trouble", "requests"),
    [
        ([Answer(status=429, headers={"Retry-After": "0"})], 2),
        ([Answer(status=503), Answer(status=500)], 3),
        ([Answer(hangs_up=True)], 2),
        ([Answer(delay_s=30.0)], 2),
    ],
)
async def test_trouble_that_passes_is_tried_again(trouble: list[Answer], requests: int) -> None:
    seen = itertools.count()

    def rule(request: Mapping[str, Any]) -> Message | Answer:
        number = next(seen)
        return trouble[number] if number < len(trouble) else assistant("done")

    found = await asked(rule, timeout_s=2.0)
    assert found.outcome.total() == 1.0
    assert next(seen) == requests


@pytest.mark.parametrize(
    ("answer", "retryable", "says", "requests"),
    [
        (Answer(status=500), True, "no completion in 3 requests; latest: HTTP 500", 3),
        (Answer(status=401, body="no key"), False, "HTTP 401: no key", 1),
        (Answer(body="<html>"), True, "no chat completion in '<html>'", 1),
        (Answer(body='{"choices": []}'), True, "no chat completion", 1),
        (Answer(body='{"choices": [{"message": {"content": [1]}}]}'), True, "its content is", 1),
    ],
)
async def test_trouble_that_stays_is_an_engine_failure(
    answer: Answer, retryable: bool, says: str, requests: int
) -> None:
    """E1, X7: never a score of 0."""
    seen = itertools.count()

    def rule(request: Mapping[str, Any]) -> Answer:
        next(seen)
        return answer

    failure = (await asked(rule)).outcome.failure
    assert failure is not None
    assert (failure.origin, failure.retryable) == ("engine", retryable)
    assert says in failure.message
    assert next(seen) == requests


async def test_a_context_that_is_full_is_a_stop() -> None:
    body = '{"error": {"message": "This model\'s maximum context length is 8 tokens"}}'
    found = await asked(lambda request: Answer(status=400, body=body))
    assert found.outcome.stop is Stop.CONTEXT_FULL
    assert found.outcome.total() == 0.0


@pytest.mark.parametrize("arguments", ['{"where": "here"', "", "null", "[]", '"here"', None, 3])
def test_malformed_arguments_are_the_policys_to_read_about(arguments: Any) -> None:
    """T6: an error observation with the call's own id, and the loop goes on."""
    function = {"name": "look", "arguments": arguments}
    said = {"content": None, "tool_calls": [{"id": "c7", "type": "function", "function": function}]}
    (call,) = read_completion(json.dumps({"choices": [{"message": said}]})).message.tool_calls
    assert (call.id, call.name, dict(call.arguments)) == ("c7", "look", {})
    assert call.error is not None
    assert "arguments of look" in call.error


def test_a_cut_turn_says_so() -> None:
    assert read_completion(completion({}, assistant("so"), finish_reason="length")).cut
    assert not read_completion(completion({}, assistant("so"))).cut


async def test_requests_are_bounded() -> None:
    now = most = 0

    async def one(policy: EndpointPolicy) -> None:
        await policy.reply([Message("user", "hi")], (), max_tokens=1, seed=0)

    def rule(request: Mapping[str, Any]) -> Answer:
        nonlocal now, most
        now += 1
        most = max(most, now)
        asyncio.get_running_loop().call_later(0.05, leave)
        return Answer(body=completion(request, assistant("done")), delay_s=0.05)

    def leave() -> None:
        nonlocal now
        now -= 1

    async with serve_model(rule) as url:
        policy = EndpointPolicy(settings(url, max_live=3))
        await asyncio.gather(*(one(policy) for _ in range(12)))
        await policy.close()
    assert 1 < most <= 4  # the server counts an answer as under way for a moment after its client has it


def test_a_key_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"\$NO_SUCH_KEY is not set"):
        EndpointPolicy(settings("http://localhost:1/v1", api_key_env="NO_SUCH_KEY"))


async def _collected(policy: Policy, retries: int) -> list[Attempt]:
    kept: list[Attempt] = []

    async def keep(attempt: Attempt, trajectory: Trajectory | None) -> None:
        kept.append(attempt)

    await collect_attempts(
        spec_of(Echo),
        MessagePlayer(policy, None, Budget()),
        terms={},
        num_tasks=1,
        attempts=1,
        split="heldout",
        seed=0,
        max_live=1,
        retries=retries,
        done=(),
        on_finished=keep,
    )
    return kept


@pytest.mark.parametrize(
    ("retryable", "retries", "replaced", "fails"),
    [(True, 0, 0, True), (True, 1, 1, True), (True, 2, 2, False), (True, 9, 2, False), (False, 9, 0, True)],
)
async def test_only_what_may_pass_is_played_again(retryable: bool, retries: int, replaced: int, fails: bool) -> None:
    """The endpoint breaks twice, then works: with two retries the third try counts, and two are listed as replaced."""

    class Breaks(Lines):
        tries = 0

        def speaker(self, job: Job) -> Lines:
            self.tries += 1
            error = EngineFailure("down")
            error.retryable = retryable
            self._left = iter([error] if self.tries <= 2 else [turn(content="done")])
            return self

    (attempt,) = await _collected(Breaks(), retries)
    assert len(attempt.replaced) == replaced
    assert (attempt.outcome.failure is not None) == fails
    assert Attempt.from_line(attempt.to_line()) == attempt

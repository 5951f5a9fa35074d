"""The scripted engine keeps the contract, and misbehaves exactly as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from engine_contract import CONTEXT, PROMPT, EngineContract

from glmgym.engine import Engine, Finish, GenerateParams, SamplingSettings, Weights
from glmgym.engines import Fault, ScriptedEngine, script_logprobs
from glmgym.errors import CaptureError, ConfigError, EngineFailure
from glmgym.settings import parse_settings


def counting(prompt_ids: Sequence[int], session: str, turn: int) -> list[int]:
    return list(range(20, 276))


class TestScriptedEngineContract(EngineContract):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        engine = ScriptedEngine(
            counting,
            fault=lambda session, _: Fault.STALL if session == "slow" else None,
            context_length=CONTEXT,
            version=3,
        )
        yield engine
        await engine.close()

    def weights(self, engine: Engine, version: int) -> Weights:
        return Weights(version)


def faulty(fault: Fault) -> ScriptedEngine:
    """Answers 11, 12, 13, 2 in turn 0 (with ``fault``) and 14, 2 in turn 1."""
    return ScriptedEngine([[11, 12, 13, 2], [14, 2]], fault=lambda _, turn: fault if turn == 0 else None)


STOP_AT_2 = GenerateParams(max_tokens=10, stop_token_ids=frozenset({2}))


async def test_turns_are_counted_per_session() -> None:
    engine = ScriptedEngine(lambda prompt, session, turn: [len(prompt), turn, len(session)])
    seen = [
        (await engine.generate(prompt, GenerateParams(max_tokens=9), session=session)).token_ids.tolist()
        for prompt, session in [([1], "a"), ([1, 1], "a"), ([1], "bcd")]
    ]
    assert seen == [[1, 0, 1], [2, 1, 1], [1, 0, 3]]


async def test_an_exhausted_script_is_a_failure_not_an_empty_answer() -> None:
    engine = ScriptedEngine([[2]])
    await engine.generate(PROMPT, STOP_AT_2, session="a")
    with pytest.raises(EngineFailure, match="1 answers"):
        await engine.generate(PROMPT, STOP_AT_2, session="a")


async def test_a_surplus_log_prob_is_refused_with_both_counts() -> None:
    """P4: 208 log-probs for 207 tokens is an error that names the counts."""
    engine = ScriptedEngine([list(range(10, 217))], fault=lambda *_: Fault.EXTRA_LOGPROB)
    with pytest.raises(CaptureError, match="207 token ids came with 208 log-probs") as caught:
        await engine.generate(PROMPT, GenerateParams(max_tokens=500), session="a")
    assert not caught.value.retryable


async def test_a_stripped_stop_token_is_missing_although_the_finish_says_stop() -> None:
    answer = await faulty(Fault.STRIPPED_STOP).generate(PROMPT, STOP_AT_2, session="a")
    assert (answer.token_ids.tolist(), answer.finish) == ([11, 12, 13], Finish.STOP)


async def test_a_crash_is_retryable_and_the_next_turn_answers() -> None:
    engine = faulty(Fault.CRASH)
    with pytest.raises(EngineFailure) as caught:
        await engine.generate(PROMPT, STOP_AT_2, session="a")
    assert caught.value.retryable
    assert (await engine.generate(PROMPT, STOP_AT_2, session="a")).token_ids.tolist() == [14, 2]


async def test_an_outside_abort_gives_half_of_the_ids() -> None:
    answer = await faulty(Fault.ABORT).generate(PROMPT, STOP_AT_2, session="a")
    assert (answer.token_ids.tolist(), answer.finish) == ([11, 12], Finish.ABORT)


async def test_a_stalled_request_ends_when_cancelled() -> None:
    engine = faulty(Fault.STALL)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.generate(PROMPT, STOP_AT_2, session="a"), 0.01)
    assert (await engine.generate(PROMPT, STOP_AT_2, session="a")).token_ids.tolist() == [14, 2]


async def test_a_switch_during_an_answer_stamps_its_second_half() -> None:
    """P3: versions are per token, from the engine's own clock."""
    engine = ScriptedEngine([[11, 12, 13, 2]], latency_s=0.05, version=1)
    waiting = asyncio.ensure_future(engine.generate(PROMPT, STOP_AT_2, session="a"))
    await asyncio.sleep(0)
    await engine.switch(Weights(2))
    assert (await waiting).versions.tolist() == [1, 1, 2, 2]


def test_made_up_logprobs_depend_on_position_token_and_temperature() -> None:
    # position 3, id 5: -(0.05 + (155 + 51) % 97 / 50) = -(0.05 + 12 / 50)
    np.testing.assert_allclose(script_logprobs([5], 3), [-0.29], rtol=1e-6)
    np.testing.assert_allclose(script_logprobs([5], 3, 0.5), [-0.58], rtol=1e-6)
    assert (script_logprobs(range(500), 0) < 0).all()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"top_p": 0.95}, "log"),
        ({"top_k": 50}, "log"),
        ({"temperature": 0.0}, "above 0"),
        ({"temperature": -1.0}, "above 0"),
        ({"temperture": 1.0}, "temperature"),
    ],
)
def test_sampling_that_falsifies_log_probs_is_refused_when_parsed(data: dict[str, float], reason: str) -> None:
    """P1: top_p < 1, top_k > 0 and T <= 0 are refused at config time, naming key and value."""
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_settings(SamplingSettings, data, where="[sampling]")
    assert next(iter(data)) in str(caught.value)
    assert parse_settings(SamplingSettings, {"temperature": 0.7, "top_p": 1, "top_k": 0}, where="x").temperature == 0.7


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"max_tokens": 1, "temperature": 0.0}])
def test_a_request_that_cannot_sample_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(reversed(bad))):
        GenerateParams(**bad)  # type: ignore[arg-type]

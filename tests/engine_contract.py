"""What every engine must do. A test module subclasses ``EngineContract`` and gives it an ``engine`` fixture.

The engine has version 3 and a context of 256 tokens; answers to session ``"slow"`` take long enough to be aborted.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from glmgym.engine import Engine, Finish, GenerateParams, PromptTooLong, Weights
from glmgym.errors import EngineFailure

PROMPT = [5, 6, 7]
CONTEXT = 256
TIMEOUT_S = 20.0  # no call may hang


class EngineContract:
    def weights(self, engine: Engine, version: int) -> Weights:
        """Weights that the engine accepts."""
        raise NotImplementedError

    async def test_logprobs_are_those_that_score_gives(self, engine: Engine) -> None:
        """P1: at T=0.5 both are of the tempered distribution."""
        for temperature in (1.0, 0.5):
            params = GenerateParams(max_tokens=6, temperature=temperature)
            answer = await engine.generate(PROMPT, params, session=f"t{temperature}")
            scores = await engine.score([*PROMPT, *answer.token_ids.tolist()], temperature=temperature)
            assert len(scores) == len(PROMPT) + len(answer.token_ids) - 1
            np.testing.assert_allclose(answer.logprobs, scores[len(PROMPT) - 1 :], atol=1e-4)

    async def test_max_tokens_finishes_as_length(self, engine: Engine) -> None:
        answer = await engine.generate(PROMPT, GenerateParams(max_tokens=4), session="a")
        assert (len(answer.token_ids), answer.finish) == (4, Finish.LENGTH)

    async def test_the_stop_token_is_the_last_id(self, engine: Engine) -> None:
        free = (await engine.generate(PROMPT, GenerateParams(max_tokens=6), session="a")).token_ids.tolist()
        first = free.index(free[3])
        await engine.release("a")
        params = GenerateParams(max_tokens=6, stop_token_ids=frozenset({free[3]}))
        stopped = await engine.generate(PROMPT, params, session="a")
        assert stopped.token_ids.tolist() == free[: first + 1]
        assert stopped.finish is Finish.STOP

    async def test_the_context_ends_a_request_as_length(self, engine: Engine) -> None:
        prompt = [5] * (CONTEXT - 2)
        answer = await engine.generate(prompt, GenerateParams(max_tokens=6), session="a")
        assert (len(answer.token_ids), answer.finish) == (2, Finish.LENGTH)

    async def test_a_prompt_that_fills_the_context_is_refused_for_good(self, engine: Engine) -> None:
        with pytest.raises(PromptTooLong, match="256") as caught:
            await engine.generate([5] * CONTEXT, GenerateParams(max_tokens=1), session="a")
        assert not caught.value.retryable

    async def test_versions_follow_an_acknowledged_switch(self, engine: Engine) -> None:
        """P3: no token is stamped with a version that was not in effect, and old weights are refused."""
        before = await engine.generate(PROMPT, GenerateParams(max_tokens=4), session="a")
        assert before.versions.tolist() == [3] * 4
        assert await engine.switch(self.weights(engine, 57)) == 57
        assert engine.version == 57
        after = await engine.generate(PROMPT, GenerateParams(max_tokens=4), session="b")
        assert after.versions.tolist() == [57] * 4
        with pytest.raises(EngineFailure, match="56"):
            await engine.switch(self.weights(engine, 56))
        assert engine.version == 57

    async def test_abort_returns_the_partial_ids(self, engine: Engine) -> None:
        whole = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=250), session="slow"))
        await asyncio.sleep(0.02)
        await engine.abort("slow")
        partial = await asyncio.wait_for(whole, TIMEOUT_S)
        assert partial.finish is Finish.ABORT
        assert len(partial.token_ids) < 250
        again = await engine.generate(PROMPT, GenerateParams(max_tokens=4), session="after")
        assert again.finish is Finish.LENGTH

    async def test_one_session_runs_one_request_at_a_time(self, engine: Engine) -> None:
        first = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=250), session="slow"))
        await asyncio.sleep(0)
        with pytest.raises(EngineFailure, match="slow"):
            await engine.generate(PROMPT, GenerateParams(max_tokens=250), session="slow")
        await engine.abort("slow")
        await asyncio.wait_for(first, TIMEOUT_S)

    async def test_sessions_nobody_opened_may_be_aborted_and_released(self, engine: Engine) -> None:
        await engine.abort("nobody")
        await engine.release("nobody")

    async def test_closing_fails_whoever_waits_and_whoever_comes(self, engine: Engine) -> None:
        waiting = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=250), session="slow"))
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.close(), TIMEOUT_S)
        with pytest.raises(EngineFailure, match="closed"):
            await asyncio.wait_for(waiting, TIMEOUT_S)
        with pytest.raises(EngineFailure, match="closed"):
            await engine.generate(PROMPT, GenerateParams(max_tokens=1), session="a")
        await engine.close()

"""What every engine must do. A test module subclasses ``EngineContract`` and gives it an ``engine`` fixture.

The engine has version 3 and a context of 256 tokens; answers to session ``"slow"`` take long enough to be aborted.
What only scores subclasses ``ScorerContract`` and gives it a ``scorer`` fixture of at least 51 tokens.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from glmgym.engine import Engine, Finish, GenerateParams, PromptTooLong, Scorer, Weights
from glmgym.errors import EngineFailure

PROMPT = [5, 6, 7]
CONTEXT = 256
TIMEOUT_S = 20.0  # no call may hang


class ScorerContract:
    context = CONTEXT  # most tokens of one text

    @pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
    async def test_the_likeliest_of_all_tokens_hold_the_score_of_the_given_one(
        self, scorer: Scorer, temperature: float
    ) -> None:
        """k = -1: every token once, likeliest first; the given token's entry is its score, at the same position."""
        text = [*PROMPT, 40, 3, 3, 19]
        scores = await scorer.score(text, temperature=temperature)
        every = await scorer.score_top(text, -1, temperature=temperature)
        vocab_size = every.top_ids.shape[1]
        np.testing.assert_allclose(every.logprobs, scores, atol=1e-6)
        assert (np.sort(every.top_ids, axis=1) == np.arange(vocab_size)).all()
        assert (np.diff(every.top_logprobs, axis=1) <= 0).all()
        where = (every.top_ids == np.array(text[1:])[:, None]).argmax(axis=1)
        np.testing.assert_allclose(every.top_logprobs[np.arange(6), where], scores, atol=1e-6)

    async def test_fewer_likeliest_tokens_are_the_first_of_all(self, scorer: Scorer) -> None:
        """From 0 to beyond the vocabulary; equal log-probs stand by id, so that the cut is never a matter of luck."""
        text = [*PROMPT, 40, 3, 3, 19]
        every = await scorer.score_top(text, -1)
        vocab_size = every.top_ids.shape[1]
        equal = np.diff(every.top_logprobs, axis=1) == 0
        assert (np.diff(every.top_ids, axis=1)[equal] > 0).all()
        for k in (0, 1, 2, 7, vocab_size - 1, vocab_size, vocab_size + 1, 10 * vocab_size):
            top = await scorer.score_top(text, k)
            assert top.top_ids.shape == (6, min(k, vocab_size))
            assert (top.top_ids.dtype, top.top_logprobs.dtype) == (np.int32, np.float32)
            np.testing.assert_array_equal(top.top_ids, every.top_ids[:, :k])
            np.testing.assert_array_equal(top.top_logprobs, every.top_logprobs[:, :k])

    async def test_texts_scored_together_get_their_own_scores(self, scorer: Scorer) -> None:
        texts = [[index, *PROMPT, 50 - index] for index in range(8)]
        together = await asyncio.gather(*(scorer.score(text) for text in texts))
        for text, scores in zip(texts, together, strict=True):
            np.testing.assert_allclose(scores, await scorer.score(text), atol=1e-5)
        assert len({tuple(scores) for scores in map(np.ndarray.tolist, together)}) == 8

    async def test_one_token_has_nothing_to_score(self, scorer: Scorer) -> None:
        assert (await scorer.score([5])).shape == (0,)
        assert (await scorer.score_top([5], 3)).top_ids.shape == (0, 3)

    async def test_a_text_may_fill_the_context_but_not_more(self, scorer: Scorer) -> None:
        assert len(await scorer.score([5] * self.context)) == self.context - 1
        with pytest.raises(PromptTooLong, match=str(self.context + 1)) as caught:
            await scorer.score([5] * (self.context + 1))
        assert not caught.value.retryable

    async def test_a_closed_scorer_says_so(self, scorer: Scorer) -> None:
        await asyncio.wait_for(scorer.close(), TIMEOUT_S)
        with pytest.raises(EngineFailure, match="closed"):
            await scorer.score(PROMPT)
        with pytest.raises(EngineFailure, match="closed"):
            await scorer.score_top(PROMPT, 3)
        await scorer.close()


class EngineContract(ScorerContract):
    @pytest.fixture
    def scorer(self, engine: Engine) -> Scorer:
        return engine

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
            top = await engine.score_top([*PROMPT, *answer.token_ids.tolist()], -1, temperature=temperature)
            found = top.top_ids[len(PROMPT) - 1 :] == answer.token_ids[:, None]
            np.testing.assert_allclose(answer.logprobs, top.top_logprobs[len(PROMPT) - 1 :][found], atol=1e-4)

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

"""The scorer of teachers: any transformers architecture, and every log-prob is that of the library's own logits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from engine_contract import PROMPT, TIMEOUT_S, ScorerContract
from tiny_glm import VOCAB, tiny_glm
from tiny_models import MODELS
from torch import Tensor
from transformers import CohereConfig, CohereForCausalLM

from glmgym.engine import Scorer, TopScores
from glmgym.errors import CaptureError, ConfigError, EngineFailure
from glmgym_trainers.engines import PrefillScorer, TorchEngine
from glmgym_trainers.engines.top_scores import likeliest, score_states

CONTEXT = 128  # of the tiny models


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


class TestPrefillScorerContract(ScorerContract):
    context = CONTEXT

    @pytest.fixture
    async def scorer(self, model: Any) -> AsyncIterator[Scorer]:
        scorer = PrefillScorer(model)
        yield scorer
        await scorer.close()


@torch.no_grad()
def table_of(model: Any, ids: list[int], temperature: float) -> Tensor:
    """[T-1, V] by the library."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_the_whole_distribution_is_the_library_s(model: Any, temperature: float) -> None:
    scorer = PrefillScorer(model)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, 40)]
    every = await scorer.score_top(ids, -1, temperature=temperature)
    table = table_of(model, ids, temperature)
    found = np.take_along_axis(table.numpy(), every.top_ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(every.top_logprobs, found, atol=1e-5)
    np.testing.assert_allclose(np.exp(every.top_logprobs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    given = table.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(every.logprobs, given, atol=1e-5)
    await scorer.close()


async def test_a_few_likeliest_tokens_are_normalised_over_all_of_them() -> None:
    """Not over the few: their probabilities add up to less than 1, by what the others have."""
    model = tiny_glm()
    for scorer in (PrefillScorer(model), TorchEngine(model, max_slots=1, context_length=CONTEXT)):
        every, few = await scorer.score_top(PROMPT, -1), await scorer.score_top(PROMPT, 5)
        inside = np.exp(few.top_logprobs.astype(np.float64)).sum(axis=1)
        outside = np.exp(every.top_logprobs[:, 5:].astype(np.float64)).sum(axis=1)
        assert (inside < 0.99).all()
        np.testing.assert_allclose(inside + outside, 1.0, atol=1e-5)
        await scorer.close()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_equal_entries_stand_by_id_wherever_the_cut_falls(k: int) -> None:
    """-1 at ids 2, 3 and 5, -2 at 0 and 4, -3 at 1: the order is 2 3 5 0 4 1."""
    table = torch.tensor([[-2.0, -3.0, -1.0, -1.0, -2.0, -1.0]]).repeat(3, 1)
    assert likeliest(table, k).tolist() == [[2, 3, 5, 0, 4, 1][:k]] * 3


def test_a_flat_distribution_is_cut_at_the_lowest_ids() -> None:
    """As of a model whose output layer is still 0, or of tokens that are masked: -inf like each other."""
    assert likeliest(torch.zeros(4, 5000), 3).tolist() == [[0, 1, 2]] * 4
    masked = torch.full((1, 6), -torch.inf)
    masked[0, 4] = 0.0
    assert likeliest(masked, 3).tolist() == [[4, 0, 1]]


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_the_cut_into_blocks_changes_nothing(rows: int) -> None:
    """7 rows of 60 float32 in blocks of ``rows``."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(7, 16, generator=generator), torch.randn(VOCAB, 16, generator=generator)
    sizes: list[int] = []

    def logits(states: Tensor) -> Tensor:
        sizes.append(len(states))
        return states @ weight.T

    targets = torch.arange(7)
    size = 4 * VOCAB * rows + 1
    got = score_states(hidden, targets, logits, vocab_size=VOCAB, temperature=0.5, k=4, block_bytes=size)
    assert max(sizes) == min(rows, 7)
    assert sum(sizes) == 7
    whole = torch.log_softmax(hidden @ weight.T / 0.5, -1)
    np.testing.assert_allclose(got.logprobs, whole[torch.arange(7), targets].numpy(), atol=1e-5)
    np.testing.assert_array_equal(got.top_ids, likeliest(whole, 4).numpy())


async def test_half_precision_is_scored_in_its_own_and_added_up_in_full() -> None:
    """bfloat16 logits; their softmax is float32, so that the probabilities still add up to 1."""
    model = tiny_glm().to(torch.bfloat16)
    scorer = PrefillScorer(model)
    every = await scorer.score_top(PROMPT, -1)
    np.testing.assert_allclose(np.exp(every.top_logprobs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    await scorer.close()


def test_a_model_with_more_between_states_and_logits_is_refused() -> None:
    config = CohereConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, logit_scale=0.0625, initializer_range=0.2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="CohereForCausalLM cannot be scored"):
        PrefillScorer(CohereForCausalLM(config))
    PrefillScorer(CohereForCausalLM(CohereConfig(**{**config.to_dict(), "logit_scale": 1.0})))


async def test_weights_that_are_not_numbers_are_a_failure() -> None:
    model = tiny_glm()
    scorer = PrefillScorer(model)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(EngineFailure, match="not numbers"):
        await scorer.score(PROMPT)
    await scorer.close()


@pytest.mark.parametrize("bad", [[], [VOCAB], [-1]])
async def test_a_text_that_is_none_is_refused(bad: list[int]) -> None:
    scorer = PrefillScorer(tiny_glm())
    with pytest.raises(EngineFailure, match="at least 1 token"):
        await scorer.score(bad)
    await scorer.close()


async def test_closing_fails_whoever_waits() -> None:
    """One text is being computed and may end well; those behind it fail, and none is left waiting."""
    scorer = PrefillScorer(tiny_glm())
    waiting = [asyncio.ensure_future(scorer.score([index % VOCAB] * CONTEXT)) for index in range(400)]
    await asyncio.sleep(0)
    await asyncio.wait_for(scorer.close(), TIMEOUT_S)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), TIMEOUT_S)
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(failed) >= 200  # of half a second's worth
    assert all(isinstance(outcome, EngineFailure) and "closed" in str(outcome) for outcome in failed)


async def test_a_cancelled_text_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are computed before the rest is cancelled; how many is counted, since a time says little about it."""
    scorer, computed = PrefillScorer(tiny_glm()), []
    states = scorer._states
    monkeypatch.setattr(scorer, "_states", lambda token_ids: computed.append(len(token_ids)) or states(token_ids))
    waiting = [asyncio.ensure_future(scorer.score([index % VOCAB] * CONTEXT)) for index in range(400)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(await asyncio.wait_for(scorer.score(PROMPT), TIMEOUT_S)) == 2
    assert computed[-1] == 2
    assert len(computed) < 200
    await scorer.close()


@pytest.mark.parametrize(("top", "width"), [((2, 3), 3), ((3, 3), 2), ((3,), 3)])
def test_scores_that_do_not_fit_together_are_refused(top: tuple[int, ...], width: int) -> None:
    """3 tokens scored need a [3, k] pair of tables."""
    with pytest.raises(CaptureError, match="shapes"):
        TopScores(np.zeros(3, np.float32), np.zeros(top, np.int32), np.zeros((3, width), np.float32))
    TopScores(np.zeros(3, np.float32), np.zeros((3, 3), np.int32), np.zeros((3, 3), np.float32))

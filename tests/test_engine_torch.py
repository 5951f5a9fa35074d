"""The embedded engine keeps the contract, and every log-prob it reports is that of a full float32 forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_contract import CONTEXT, PROMPT, TIMEOUT_S, EngineContract
from numpy.typing import NDArray
from transformers import DynamicCache, Glm4Config, Glm4ForCausalLM, LlamaConfig, LlamaForCausalLM

from glmgym.engine import Engine, Finish, GenerateParams, Generation, Weights
from glmgym.errors import ConfigError, EngineFailure
from glmgym_trainers.engines import TorchEngine
from glmgym_trainers.engines.sampler import sample, uniform_draws

VOCABULARY = 61
LONG_CONTEXT = 2048  # no request reaches its end before the test acts
TOLERANCE = 1e-4  # nats


def make_model(seed: int = 0, **overrides: Any) -> Glm4ForCausalLM:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": LONG_CONTEXT,
        "attention_bias": True,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = Glm4ForCausalLM(Glm4Config(**settings | overrides)).eval()
        # Away from the initial values, where all norms are alike and biases are 0, so that mixing them up shows.
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Glm4ForCausalLM:
    return make_model()


@pytest.fixture(scope="module")
def newer_model() -> Glm4ForCausalLM:
    return make_model(seed=1)


@torch.no_grad()
def full_forward(model: Any, ids: list[int], temperature: float = 1.0) -> NDArray[np.float32]:
    """[T-1] log-probs of ``ids[1:]`` by the library, without any cache."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    logprobs: NDArray[np.float32] = (
        torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    )
    return logprobs


def assert_exact(model: Any, context: list[int], answer: Generation, temperature: float = 1.0) -> None:
    reference = full_forward(model, context + answer.token_ids.tolist(), temperature)[len(context) - 1 :]
    np.testing.assert_allclose(answer.logprobs, reference, atol=TOLERANCE, rtol=0)


def request_of(index: int) -> tuple[list[int], GenerateParams]:
    """Prompts of 1-40 tokens, answers of 1-49 tokens, three temperatures."""
    rng = np.random.default_rng(index)
    prompt = rng.integers(0, VOCABULARY, size=1 + index * 13 % 40).tolist()
    return prompt, GenerateParams(max_tokens=1 + index * 7 % 49, temperature=(1.0, 0.5, 2.0)[index % 3], seed=index)


class TestTorchEngineContract(EngineContract):
    @pytest.fixture
    async def engine(self, model: Glm4ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
        """Its tokens of session "slow" take 20 ms each, lest it ends before an event loop that waits for a core."""
        engine = TorchEngine(model, max_slots=4, context_length=CONTEXT, version=3)
        scheduler = engine._scheduler
        step = scheduler.step

        def patient() -> None:
            time.sleep(0.02 if scheduler._find("slow") else 0.0)
            step()

        monkeypatch.setattr(scheduler, "step", patient)
        yield engine
        await engine.close()

    def weights(self, engine: Engine, version: int) -> Weights:
        return Weights(version, tensors=make_model(seed=version).state_dict())


@pytest.mark.parametrize("max_slots", [32, 5])
async def test_a_batch_gives_the_tokens_of_single_requests(model: Glm4ForCausalLM, max_slots: int) -> None:
    """32 ragged requests together, with slots for all or for few, equal the same requests one by one."""
    engine = TorchEngine(model, max_slots=max_slots, context_length=CONTEXT)
    requests = [request_of(index) for index in range(32)]
    together = await asyncio.gather(
        *(engine.generate(prompt, params, session=f"batch-{i}") for i, (prompt, params) in enumerate(requests))
    )
    for index, (prompt, params) in enumerate(requests):
        alone = await engine.generate(prompt, params, session=f"alone-{index}")
        assert together[index].token_ids.tolist() == alone.token_ids.tolist()
        assert len(alone.token_ids) == params.max_tokens
        assert_exact(model, prompt, together[index], params.temperature)
    await engine.close()


async def test_token_t_is_drawn_with_number_t_of_the_seed(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    answer = await engine.generate(PROMPT, GenerateParams(max_tokens=20, seed=11), session="a")
    context = list(PROMPT)
    for value in uniform_draws(11, 20):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1:]
        token_id, _ = sample(logits, torch.ones(1), torch.tensor([value], dtype=torch.float64))
        context.append(int(token_id))
    assert answer.token_ids.tolist() == context[len(PROMPT) :]
    await engine.close()


async def test_the_next_turn_prefills_only_new_tokens(model: Glm4ForCausalLM) -> None:
    """Turn 1: 10 tokens, all new. Each later turn: the last sampled token and 4 of the observation, so 5."""
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    context = list(range(10))
    for turn in range(4):
        answer = await engine.generate(context, GenerateParams(max_tokens=6, seed=turn), session="a")
        assert_exact(model, context, answer)
        assert engine.stats.prefilled == 10 + 5 * turn
        context += [*answer.token_ids.tolist(), 50, 51, 52, 53]
    assert engine.stats.reused == 15 + 25 + 35
    await engine.close()


async def test_a_context_that_departs_reuses_the_common_prefix(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    await engine.generate([1, 2, 3, 4, 5, 6], GenerateParams(max_tokens=4), session="a")
    forked = await engine.generate([1, 2, 3, 9, 9], GenerateParams(max_tokens=4), session="a")
    assert engine.stats.reused == 3
    assert_exact(model, [1, 2, 3, 9, 9], forked)
    await engine.close()


async def test_an_idle_session_survives_the_decoding_of_its_neighbours(model: Glm4ForCausalLM) -> None:
    """Session 0 rests between rows that decode on, others come, go and are moved; its keys stay what they were."""
    engine = TorchEngine(model, max_slots=8, context_length=CONTEXT)
    contexts = [list(range(index, index + 12)) for index in range(8)]

    async def talk(index: int) -> None:
        for turn in range(4):
            params = GenerateParams(max_tokens=3 if index == 0 else 4 + 9 * (index * (turn + 3) % 5), seed=turn)
            answer = await engine.generate(contexts[index], params, session=str(index))
            assert_exact(model, contexts[index], answer)
            contexts[index] += [*answer.token_ids.tolist(), 7, index]

    await asyncio.gather(*(talk(index) for index in range(8)))
    assert engine.stats.prefilled == 8 * (12 + 3 * 3)
    await engine.close()


async def test_the_longest_idle_session_is_evicted(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    for session in "abac":  # c takes the row of b
        await engine.generate(PROMPT, GenerateParams(max_tokens=2), session=session)
    assert engine.stats.evicted == 1
    before = engine.stats.prefilled
    await engine.generate(PROMPT, GenerateParams(max_tokens=2), session="a")
    assert engine.stats.prefilled - before == 1
    await engine.generate(PROMPT, GenerateParams(max_tokens=2), session="b")
    assert engine.stats.prefilled - before == 1 + len(PROMPT)
    await engine.close()


async def decoded(engine: TorchEngine, num_tokens: int) -> None:
    """Wait until the engine has decoded ``num_tokens`` more tokens."""
    target = engine.stats.decoded + num_tokens
    async with asyncio.timeout(TIMEOUT_S):
        while engine.stats.decoded < target:  # noqa: ASYNC110 - the engine tells nobody about single tokens
            await asyncio.sleep(0.001)


async def interrupted(engine: TorchEngine, newer: Glm4ForCausalLM) -> Generation:
    """A request that a switch to version 1 catches in the middle; aborted some tokens later."""
    running = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=2000), session="a"))
    await decoded(engine, 10)
    await engine.switch(Weights(1, tensors=newer.state_dict()))
    await decoded(engine, 10)
    await engine.abort("a")
    answer = await asyncio.wait_for(running, TIMEOUT_S)
    assert set(answer.versions.tolist()) == {0, 1}
    return answer


async def test_recomputed_keys_make_every_token_exact_under_its_own_version(
    model: Glm4ForCausalLM, newer_model: Glm4ForCausalLM
) -> None:
    """P2: the spans [(0, n1), (1, n2)] of one request equal full forwards of the two versions."""
    engine = TorchEngine(model, max_slots=2, context_length=LONG_CONTEXT, keep_kv_on_switch=False)
    answer = await interrupted(engine, newer_model)
    ids = PROMPT + answer.token_ids.tolist()
    by_version = np.stack([full_forward(model, ids), full_forward(newer_model, ids)])[:, len(PROMPT) - 1 :]
    expected = np.where(answer.versions == 0, *by_version)
    np.testing.assert_allclose(answer.logprobs, expected, atol=TOLERANCE, rtol=0)
    before = engine.stats.prefilled
    await engine.switch(Weights(2, tensors=model.state_dict()))
    context = [*ids, 8]
    assert_exact(model, context, await engine.generate(context, GenerateParams(max_tokens=5), session="a"))
    assert engine.stats.prefilled - before == len(context)
    await engine.close()


async def test_kept_keys_are_the_old_ones_under_the_new_weights(
    model: Glm4ForCausalLM, newer_model: Glm4ForCausalLM
) -> None:
    """P2: what ``keep_kv_on_switch`` promises, against the library: old model fills the cache, new model goes on."""
    engine = TorchEngine(model, max_slots=2, context_length=LONG_CONTEXT)
    answer = await interrupted(engine, newer_model)
    ids = PROMPT + answer.token_ids.tolist()
    num_old = int((answer.versions == 0).sum())
    split = len(PROMPT) + num_old - 1  # the last old token is sampled, but its keys are computed by the new weights
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.tensor([ids[:split]]), cache=cache, use_cache=True)
        logits = newer_model(input_ids=torch.tensor([ids[split:-1]]), cache=cache, use_cache=True).logits[0]
    reference = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[split + 1 :])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(answer.logprobs[num_old:], reference, atol=TOLERANCE, rtol=0)
    assert np.abs(reference - full_forward(newer_model, ids)[split:]).max() > 100 * TOLERANCE
    await engine.close()


async def test_older_keys_serve_only_the_context_they_belong_to(
    model: Glm4ForCausalLM, newer_model: Glm4ForCausalLM
) -> None:
    """P2: after a switch a new session and a departing context start from nothing; a continued one does not."""
    engine = TorchEngine(model, max_slots=4, context_length=CONTEXT)
    prompt = list(range(20))
    params = GenerateParams(max_tokens=3)
    turns = {session: await engine.generate(prompt, params, session=session) for session in ("goes on", "departs")}
    await engine.switch(Weights(1, tensors=newer_model.state_dict()))

    async def prefilled(session: str, context: list[int]) -> int:
        before = engine.stats.prefilled
        answer = await engine.generate(context, params, session=session)
        if session != "goes on":
            assert_exact(newer_model, context, answer)
        return engine.stats.prefilled - before

    assert await prefilled("new", prompt) == 20
    assert await prefilled("departs", [*prompt[:15], 60, 59]) == 17
    assert await prefilled("goes on", prompt + turns["goes on"].token_ids.tolist() + [60]) == 2
    await engine.close()


async def test_weights_that_do_not_fit_change_nothing(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    state = make_model(seed=9).state_dict()
    short = {name: tensor for name, tensor in state.items() if name != "model.norm.weight"}
    wide = state | {"lm_head.weight": torch.zeros(VOCABULARY + 1, 32)}
    for tensors, reason in [(short, "model.norm.weight"), (wide, r"lm_head.weight is \(62, 32\)")]:
        with pytest.raises(EngineFailure, match=reason):
            await engine.switch(Weights(1, tensors=tensors))
    with pytest.raises(EngineFailure, match="neither tensors nor a path"):
        await engine.switch(Weights(1))
    assert engine.version == 0
    assert_exact(model, PROMPT, await engine.generate(PROMPT, GenerateParams(max_tokens=5), session="a"))
    await engine.close()


async def test_weights_are_read_from_a_checkpoint_directory(
    model: Glm4ForCausalLM, newer_model: Glm4ForCausalLM, tmp_path: Path
) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    with pytest.raises(EngineFailure, match="safetensors"):
        await engine.switch(Weights(1, path=tmp_path))
    newer_model.save_pretrained(tmp_path)
    assert await engine.switch(Weights(1, path=tmp_path)) == 1
    assert_exact(newer_model, PROMPT, await engine.generate(PROMPT, GenerateParams(max_tokens=5), session="a"))
    await engine.close()


async def test_the_engine_owns_its_weights() -> None:
    """The trainer steps its own model while the engine samples; nothing changes before a switch."""
    mine, reference = make_model(), make_model()
    engine = TorchEngine(mine, max_slots=2, context_length=CONTEXT)
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.zero_()
    assert_exact(reference, PROMPT, await engine.generate(PROMPT, GenerateParams(max_tokens=5), session="a"))
    await engine.close()


async def test_a_broken_step_fails_every_waiting_request_and_the_engine_recovers(model: Glm4ForCausalLM) -> None:
    """NaN weights break the step for two running and one queued request; good weights then serve exact log-probs.

    The short request afterwards shares its batch with a long one, so that keys left behind by the broken step would be
    masked, yet 0 * NaN is NaN.
    """
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    long_prompt = list(range(40))
    nans = {name: torch.full_like(tensor, torch.nan) for name, tensor in model.state_dict().items()}
    await engine.switch(Weights(1, tensors=nans))
    waiting = [engine.generate(long_prompt, GenerateParams(max_tokens=9), session=session) for session in "abc"]
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), TIMEOUT_S)
    assert all(isinstance(outcome, EngineFailure) and "not finite" in str(outcome) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 3
    await engine.switch(Weights(2, tensors=model.state_dict()))
    prompts = [PROMPT, long_prompt]
    answers = await asyncio.gather(
        *(engine.generate(prompt, GenerateParams(max_tokens=9), session=str(prompt)) for prompt in prompts)
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_exact(model, prompt, answer)
    await engine.close()


async def test_a_cancelled_request_gives_its_slot_back(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=1, context_length=LONG_CONTEXT)
    running = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=2000), session="a"))
    await decoded(engine, 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.generate(PROMPT, GenerateParams(max_tokens=2), session="b")
    assert engine.stats.decoded < 1999
    await engine.close()


async def test_a_queued_request_may_be_aborted_before_it_has_a_token(model: Glm4ForCausalLM) -> None:
    engine = TorchEngine(model, max_slots=1, context_length=LONG_CONTEXT)
    first = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=2000), session="a"))
    second = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=250), session="b"))
    await asyncio.sleep(0)
    await engine.abort("b")
    aborted = await asyncio.wait_for(second, TIMEOUT_S)
    assert (len(aborted.token_ids), aborted.finish) == (0, Finish.ABORT)
    await engine.abort("a")
    await first
    await engine.close()


@pytest.mark.parametrize(("prompt", "reason"), [([], "empty"), ([VOCABULARY], "outside"), ([-1], "outside")])
async def test_a_bad_prompt_fails_alone(model: Glm4ForCausalLM, prompt: list[int], reason: str) -> None:
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    good = asyncio.ensure_future(engine.generate(PROMPT, GenerateParams(max_tokens=20), session="a"))
    with pytest.raises(EngineFailure, match=reason):
        await engine.generate(prompt, GenerateParams(max_tokens=1), session="b")
    assert len((await good).token_ids) == 20
    await engine.close()


@pytest.mark.parametrize(
    "overrides",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 8},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}},
    ],
    ids=str,
)
async def test_variants_of_the_architecture_are_exact(overrides: dict[str, Any]) -> None:
    model = make_model(**overrides)
    engine = TorchEngine(model, max_slots=2, context_length=CONTEXT)
    assert_exact(model, PROMPT, await engine.generate(PROMPT, GenerateParams(max_tokens=30), session="a"))
    ids = list(range(60)) * 2
    np.testing.assert_allclose(await engine.score(ids), full_forward(model, ids), atol=TOLERANCE, rtol=0)
    assert (await engine.score([5])).shape == (0,)
    await engine.close()


def test_models_it_would_get_wrong_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"differ from transformers' by"):
        TorchEngine(make_model(hidden_act="relu"), context_length=CONTEXT)
    with pytest.raises(ConfigError, match="float32"):
        TorchEngine(make_model().to(torch.bfloat16), context_length=CONTEXT)
    with pytest.raises(ConfigError, match="2048 positions"):
        TorchEngine(make_model(), context_length=LONG_CONTEXT + 1)
    llama = LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ConfigError, match="llama"):
        TorchEngine(LlamaForCausalLM(llama), context_length=CONTEXT)

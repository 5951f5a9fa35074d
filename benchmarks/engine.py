"""The embedded engine against transformers' ``generate`` on one model, and against itself without prefix reuse.

    python benchmarks/engine.py [--json]

Three loads, each measured several times in alternation with its rival; the medians count:

ragged    64 requests of 8-128 new tokens, most of them short. ``generate`` samples static batches of 32, each of which
          runs to its longest member; only asked-for tokens count. The engine has 32 slots too.
equal     64 requests of 64 new tokens: nothing to win by scheduling.
sessions  32 conversations of 6 turns. The rival releases each session before the next turn, so its whole context is
          prefilled again.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np
import torch
from report import Direction, report
from transformers import Glm4Config, Glm4ForCausalLM

from glmgym.engine import GenerateParams
from glmgym_trainers.engines import TorchEngine

VOCABULARY, PROMPT, BATCH, REPEATS = 1024, 64, 32, 3
TURNS, ANSWER, OBSERVATION = 6, 16, 48
TARGETS: dict[str, tuple[float, Direction]] = {"ragged_ratio": (2.0, "min"), "equal_ratio": (0.95, "min")}


def make_model() -> Glm4ForCausalLM:
    torch.manual_seed(0)
    config = Glm4Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    return Glm4ForCausalLM(config).eval()


def ragged_lengths(n: int) -> list[int]:
    """Heavy-tailed (Pareto) output lengths in [8, 128]."""
    draws = np.random.default_rng(0).pareto(1.2, size=n)
    return [int(length) for length in np.clip(8 * (1 + draws), 8, 128)]


def prompts(n: int) -> list[list[int]]:
    rows: list[list[int]] = np.random.default_rng(1).integers(1, VOCABULARY, size=(n, PROMPT)).tolist()
    return rows


def static_batches(model: Glm4ForCausalLM, lengths: list[int]) -> None:
    rows = prompts(len(lengths))
    for start in range(0, len(rows), BATCH):
        ids = torch.tensor(rows[start : start + BATCH])
        longest = max(lengths[start : start + BATCH])
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=longest)


async def continuous(engine: TorchEngine, lengths: list[int]) -> None:
    async def one(index: int, prompt: list[int]) -> None:
        params = GenerateParams(max_tokens=lengths[index], seed=index)
        generation = await engine.generate(prompt, params, session=f"request-{index}")
        assert len(generation.token_ids) == lengths[index]

    await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts(len(lengths)))))
    await asyncio.gather(*(engine.release(f"request-{index}") for index in range(len(lengths))))


async def conversations(engine: TorchEngine, *, reuse: bool) -> None:
    async def one(index: int, context: list[int]) -> None:
        session = f"conversation-{index}"
        for turn in range(TURNS):
            params = GenerateParams(max_tokens=ANSWER, seed=turn)
            answer = await engine.generate(context, params, session=session)
            context = context + answer.token_ids.tolist() + prompts(1)[0][:OBSERVATION]
            if not reuse:
                await engine.release(session)
        await engine.release(session)

    await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts(BATCH))))


async def medians_s(*works: Callable[[], Awaitable[None]]) -> list[float]:
    """Median seconds of each work, measured in alternation after one unmeasured round."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(1 + REPEATS):
        for work, times in zip(works, seconds, strict=True):
            start = time.perf_counter()
            await work()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]


async def measure() -> dict[str, float]:
    model = make_model()
    engine = TorchEngine(model, max_slots=BATCH, context_length=1024)
    measured: dict[str, float] = {}
    try:
        for name, lengths in (("ragged", ragged_lengths(64)), ("equal", [64] * 64)):

            async def theirs(lengths: list[int] = lengths) -> None:
                await asyncio.to_thread(static_batches, model, lengths)

            generate_s, engine_s = await medians_s(theirs, lambda lengths=lengths: continuous(engine, lengths))
            measured[f"{name}_generate_tokens_per_s"] = sum(lengths) / generate_s
            measured[f"{name}_engine_tokens_per_s"] = sum(lengths) / engine_s
            measured[f"{name}_ratio"] = generate_s / engine_s
        prefill_s, reuse_s = await medians_s(
            lambda: conversations(engine, reuse=False), lambda: conversations(engine, reuse=True)
        )
        measured["sessions_prefill_again_s"] = prefill_s
        measured["sessions_reuse_s"] = reuse_s
        measured["sessions_ratio"] = prefill_s / reuse_s
    finally:
        await engine.close()
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(2)
    return report(asyncio.run(measure()), TARGETS, options.json)


if __name__ == "__main__":
    sys.exit(main())

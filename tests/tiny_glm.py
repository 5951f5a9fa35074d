"""A real GLM-4 model small enough for tests, and trajectories written down token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Glm4Config, Glm4ForCausalLM

from glmgym.trajectory import Outcome, Reward, Segment, Span, SpanKind, Stop, Trajectory

VOCAB = 60


def tiny_glm(seed: int = 0) -> Glm4ForCausalLM:
    """Hidden 32, 2 layers, float32; weights large enough that the next token depends on all those before it."""
    torch.manual_seed(seed)
    config = Glm4Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        pad_token_id=0,
        initializer_range=0.2,
    )
    return Glm4ForCausalLM(config).eval()


def segment(pattern: str, seed: int = 0) -> Segment:
    """A segment from a picture: ``p`` prompt, ``o`` observation, ``c`` carried, ``a`` action, ``s`` summary.

    The seed gives ids and log-probs.
    """
    random = np.random.default_rng(seed)
    kinds = {kind.value[0]: kind for kind in SpanKind}
    spans = []
    start = 0
    for end in range(1, len(pattern) + 1):
        if end == len(pattern) or pattern[end] != pattern[start]:
            n, kind = end - start, kinds[pattern[start]]
            ids = random.integers(1, VOCAB, n).astype(np.int32)
            if kind.is_sampled:
                logprobs = -random.uniform(3.0, 5.0, n).astype(np.float32)
                spans.append(Span(kind, ids, logprobs, np.full(n, 3, np.int32)))
            else:
                spans.append(Span(kind, ids))
            start = end
    return Segment(tuple(spans))


def trajectory(
    id: str, patterns: Sequence[str], reward: float | None = 1.0, *, stop: Stop = Stop.DONE, seed: int = 0
) -> Trajectory:
    """One trajectory of the pictured segments; ``reward=None`` means that it was not graded."""
    rewards = () if reward is None else (Reward("done", reward),)
    segments = tuple(segment(pattern, seed + index) for index, pattern in enumerate(patterns))
    return Trajectory(id, "task-0", "pictured-v0", segments, Outcome(stop, rewards))

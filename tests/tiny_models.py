"""One tiny model of random weights for each GLM architecture the trainers run on: dense, experts, sparse attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tiny_glm import VOCAB, tiny_glm
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,  # so one dense layer and one of experts
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
INDEX_TOPK = 3  # keys that sparse attention keeps: fewer than most prefixes of a test have
INDEX_HEADS = 2  # so few that ties at a score of 0 are common


def tiny_glm4_moe(seed: int = 0) -> Any:
    """GLM-4.5's architecture."""
    torch.manual_seed(seed)
    return Glm4MoeForCausalLM(Glm4MoeConfig(**_SIZES, num_key_value_heads=2, head_dim=8)).eval()


def tiny_glm_moe_dsa(seed: int = 0) -> Any:
    """GLM-5's architecture."""
    torch.manual_seed(seed)
    config = GlmMoeDsaConfig(
        **_SIZES,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        index_topk=INDEX_TOPK,
        index_head_dim=16,
        index_n_heads=INDEX_HEADS,
    )
    return GlmMoeDsaForCausalLM(config).eval()


MODELS: dict[str, Callable[..., Any]] = {
    "glm4": tiny_glm,
    "glm4_moe": tiny_glm4_moe,
    "glm_moe_dsa": tiny_glm_moe_dsa,
}

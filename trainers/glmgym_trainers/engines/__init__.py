"""Engines that need torch: the embedded continuous-batching engine for one machine, and the scorer of teachers."""

from __future__ import annotations

from glmgym.chat import Chat
from glmgym_trainers.engines.prefill import PrefillScorer
from glmgym_trainers.engines.torch_engine import TorchEngine
from glmgym_trainers.policy import load_policy

__all__ = ["PrefillScorer", "TorchEngine", "open_engine"]


def open_engine(policy: str, *, context_length: int = 2048, max_slots: int = 48) -> tuple[TorchEngine, Chat]:
    """An embedded engine for a checkpoint, and the chat that goes with it.

    Raises:
        ConfigError: there is no such checkpoint, or its architecture is not supported.
    """
    loaded = load_policy(policy)
    length = min(context_length, loaded.model.config.max_position_embeddings)
    return TorchEngine(loaded.model, max_slots=max_slots, context_length=length), loaded.chat

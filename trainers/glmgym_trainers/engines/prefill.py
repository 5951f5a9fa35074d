"""A scorer for any transformers causal language model: one prefill per text, on a thread of its own.

The teacher's side of distillation. It samples nothing and keeps no keys, so it runs what the embedded engine does not:
mixtures of experts, sparse attention, any precision. Its log-probs are those of the trainer's forward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glmgym.engine import PromptTooLong, TopScores
from glmgym.errors import ConfigError, EngineFailure, boundary
from glmgym_trainers.engines.top_scores import score_states
from glmgym_trainers.sparse_attention import stabilise

TOLERANCE = 1e-4  # of a logit, relative, between the output layer on the last states and the model's own answer


class PrefillScorer:
    """Scores texts with a model, one after the other.

    Args:
        model: a causal language model; it is put into eval mode and must not be trained meanwhile.

    Raises:
        ConfigError: the output layer on the last hidden states does not give the model's own logits.
    """

    def __init__(self, model: Any) -> None:
        stabilise(model)
        self._model = model.eval()
        self.vocab_size: int = model.config.vocab_size
        self.context_length: int = model.config.max_position_embeddings
        self._is_closed = False
        self._compare()
        self._thread = ThreadPoolExecutor(1, "glmgym-scorer")

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        return (await self.score_top(token_ids, 0, temperature=temperature)).logprobs

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        if self._is_closed:
            raise EngineFailure("the scorer is closed")
        ids = np.asarray(token_ids, dtype=np.int64)
        if len(ids) > self.context_length:
            raise PromptTooLong(f"{len(ids)} tokens to score do not fit the context of {self.context_length}")
        if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            raise EngineFailure(f"a text to score has at least 1 token and ids in [0, {self.vocab_size}) only")
        # A waiter that is cancelled takes its text out of the queue; one being computed is finished and dropped.
        return await asyncio.wrap_future(self._thread.submit(self._score, ids, k, temperature))

    async def close(self) -> None:
        """Fail what waits, wait for the text being computed. Closing twice is fine."""
        self._is_closed = True
        await asyncio.to_thread(self._thread.shutdown)

    @torch.inference_mode()
    def _score(self, ids: NDArray[np.int64], k: int, temperature: float) -> TopScores:
        if self._is_closed:
            raise EngineFailure("the scorer was closed")
        with boundary(EngineFailure, f"score {len(ids)} tokens"):
            return score_states(
                self._states(torch.from_numpy(ids[:-1])),
                torch.from_numpy(ids[1:]),
                self._model.get_output_embeddings(),
                vocab_size=self.vocab_size,
                temperature=temperature,
                k=k,
            )

    def _states(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] final states; a text of one token has none to score."""
        if len(token_ids) == 0:
            return torch.empty(0, self._model.config.hidden_size)
        out = self._model.base_model(input_ids=token_ids[None], use_cache=False)
        states: torch.Tensor = out.last_hidden_state[0]
        return states

    @torch.inference_mode()
    def _compare(self) -> None:
        """Refuse a model that does more with its states than apply the output layer (scaled or capped logits)."""
        head = self._model.get_output_embeddings()
        token_ids = torch.arange(min(16, self.vocab_size, self.context_length))
        theirs = self._model(input_ids=token_ids[None], use_cache=False).logits[0].float()
        if head is None or not torch.allclose(head(self._states(token_ids)).float(), theirs, TOLERANCE, TOLERANCE):
            raise ConfigError(
                f"{type(self._model).__name__} cannot be scored here: its output layer on the last hidden states does "
                "not give its logits"
            )

"""The contract of an inference engine: token ids in, token ids out, with the probability and version of each.

Owned here: what a request and its answer are. Engines live in ``glmgym.engines`` (no torch) and ``glmgym_trainers``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from glmgym.errors import CaptureError, EngineFailure
from glmgym.settings import Settings
from glmgym.trajectory import check_capture


class PromptTooLong(EngineFailure):
    """The prompt leaves no room for one sampled token; the same request will never fit."""

    retryable = False


class SamplingSettings(Settings):
    """How a policy samples during training rollouts: the full softmax, so that log-probs need no correction.

    Truncated sampling (``top_p < 1``, ``top_k > 0``) and ``temperature <= 0`` are refused: the reported log-prob would
    not be that of the distribution sampled from, unless the kept set is captured too.
    """

    temperature: float = 1.0  # above 0; applied to the recorded log-probs too
    top_p: float = 1.0  # 1 only
    top_k: int = 0  # 0 (off) only

    @field_validator("temperature")
    @classmethod
    def _positive(cls, value: float) -> float:
        if not 0 < value < math.inf:
            raise ValueError(
                "must be above 0 and finite: greedy sampling has no log-probs to train on; evaluate at 1.0 instead"
            )
        return value

    @field_validator("top_p")
    @classmethod
    def _whole_nucleus(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError("must be 1: a truncated nucleus biases every log-prob by log(kept mass); leave it out")
        return value

    @field_validator("top_k")
    @classmethod
    def _no_cut(cls, value: int) -> int:
        if value != 0:
            raise ValueError("must be 0 (off): a top-k cut biases every log-prob by log(kept mass); leave it out")
        return value


@dataclass(frozen=True, slots=True)
class GenerateParams:
    """One request: how many tokens at most, where to stop, and the request's own random seed.

    Raises:
        ValueError: no token may be sampled, or the temperature is not above 0.
    """

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: a request samples at least 1 token")
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature}: must be above 0, greedy sampling has no log-probs")


class Finish(StrEnum):
    STOP = "stop"  # the stop token is the last id
    LENGTH = "length"  # max_tokens or the engine's context
    ABORT = "abort"  # partial ids


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What an engine returns. ``logprobs`` are those of the distribution sampled from (temperature applied), in nats.

    Raises:
        CaptureError: ids, log-probs and versions do not fit together.
    """

    token_ids: NDArray[np.int32]  # [n]
    logprobs: NDArray[np.float32]  # [n]
    versions: NDArray[np.int32]  # [n]
    finish: Finish

    def __post_init__(self) -> None:
        check_capture(self.token_ids, self.logprobs, self.versions)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """One published policy: its version and either tensors by name or a checkpoint directory."""

    version: int
    tensors: Mapping[str, Any] | None = None
    path: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TopScores:
    """What a model says about T given tokens: entry t is about token t + 1 given everything before it, in nats.

    Every log-prob is over the whole vocabulary, of the tempered distribution. ``top_ids`` are the likeliest tokens
    there, likeliest first and of equal ones the lowest id first.

    Raises:
        CaptureError: the three have different lengths, or ids and log-probs of the likeliest different widths.
    """

    logprobs: NDArray[np.float32]  # [T-1] of the given tokens
    top_ids: NDArray[np.int32]  # [T-1, k]
    top_logprobs: NDArray[np.float32]  # [T-1, k]

    def __post_init__(self) -> None:
        if self.top_ids.shape != self.top_logprobs.shape or self.top_ids.shape[:1] != self.logprobs.shape:
            shapes = self.logprobs.shape, self.top_ids.shape, self.top_logprobs.shape
            raise CaptureError(f"scores of one text have the shapes {', '.join(map(str, shapes))}")


class Scorer(Protocol):
    """What a teacher needs of an engine: the log-probs of tokens that somebody else sampled, from one prefill."""

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        """[T-1] log-probs: entry t is the log-prob of ``token_ids[t + 1]`` given everything before it.

        Raises:
            PromptTooLong: more tokens than the context holds.
            EngineFailure: the engine broke or is closed.
        """
        ...

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        """As ``score``, with the ``k`` likeliest tokens of each distribution; all of them for k < 0 or beyond V."""
        ...

    async def close(self) -> None: ...


class Engine(Scorer, Protocol):
    """Token in, token out."""

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> str:
        """``weights/kv/compute``, for provenance."""
        ...

    @property
    def version(self) -> int:
        """The policy version now in effect."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens (prompt and sampled) one session may hold."""
        ...

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        """Continue ``prompt_ids``. ``session`` keeps KV over turns: only ids after the shared prefix are prefilled.

        Tokens end at the context: a request that reaches it finishes as LENGTH. One session runs one request at a time.

        Raises:
            PromptTooLong: the prompt alone fills the context.
            EngineFailure: the engine broke or is closed, or the session's earlier request still runs.
        """
        ...

    async def switch(self, weights: Weights) -> int:
        """Put weights in effect between two decode steps and return the acknowledged version.

        Running requests go on; each of their tokens carries the version that sampled it.

        Raises:
            EngineFailure: the weights do not fit or are older than those in effect; nothing has changed then.
        """
        ...

    async def abort(self, session: str) -> None:
        """End the session's running request; its ``generate`` returns the partial ids with finish ABORT."""
        ...

    async def release(self, session: str) -> None:
        """Forget the session's KV."""
        ...

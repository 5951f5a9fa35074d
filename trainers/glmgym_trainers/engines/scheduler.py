"""Continuous batching: requests join at any step, finish on their own, and weights change between two steps.

Everything here runs on one thread and knows nothing of asyncio; ``torch_engine`` owns the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmgym.engine import Finish, GenerateParams, Generation, TopScores
from glmgym.errors import EngineFailure
from glmgym_trainers.engines.glm4 import Glm4Decoder
from glmgym_trainers.engines.kv_cache import KVCache, Run, run_positions
from glmgym_trainers.engines.sampler import sample, uniform_draws
from glmgym_trainers.engines.slots import Slot, Slots

PREFILL_TOKENS = 4096  # per step at most, unless one request alone has more: bounds memory and everyone's wait


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine started."""

    prefilled: int = 0  # prompt tokens computed
    reused: int = 0  # prompt tokens whose keys were there already
    recomputed: int = 0  # tokens computed again because of a switch
    decoded: int = 0  # tokens sampled by decode steps; the first token of a request comes from its prefill
    steps: int = 0
    switches: int = 0
    evicted: int = 0  # sessions


@dataclass(slots=True, eq=False)
class Request:
    session: str
    prompt_ids: list[int]
    params: GenerateParams
    max_tokens: int  # those of params, or what the context leaves
    future: Future[Generation]
    draws: NDArray[np.float64] = field(init=False)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = uniform_draws(self.params.seed, self.max_tokens)

    def generation(self, finish: Finish) -> Generation:
        return Generation(
            np.array(self.token_ids, dtype=np.int32),
            np.array(self.logprobs, dtype=np.float32),
            np.array(self.versions, dtype=np.int32),
            finish,
        )


class Scheduler:
    """Owns the weights, the cache, and every request between ``submit`` and its future's result."""

    def __init__(
        self, decoder: Glm4Decoder, *, max_slots: int, context_length: int, version: int, keep_kv_on_switch: bool
    ) -> None:
        self.version = version
        self.stats = EngineStats()
        self._decoder = decoder
        self._cache = KVCache(
            layers=decoder.num_layers,
            rows=max_slots,
            kv_heads=decoder.num_kv_heads,
            context_length=context_length,
            head_dim=decoder.head_dim,
        )
        self._slots = Slots(self._cache, max_slots)
        self._keep_kv_on_switch = keep_kv_on_switch
        self._pending: deque[Request] = deque()
        self._running: dict[Slot, Request] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._pending or self._running)

    def submit(self, request: Request) -> None:
        if self._find(request.session) is not None:
            request.future.set_exception(EngineFailure(f"session {request.session!r} already has a running request"))
            return
        self._pending.append(request)

    def step(self) -> None:
        """Prefill newly admitted requests, then decode one token for each request that runs."""
        self.stats.steps += 1
        runs = self._admit()
        if runs:
            self._first_tokens(runs)
        if self._running:
            self._next_tokens()

    def abort(self, session: str) -> None:
        request = self._find(session)
        if request is not None:
            self._finish(request, Finish.ABORT)

    def cancel(self, request: Request) -> None:
        """Its waiter has gone: free the slot, whatever state the request is in."""
        if self._find(request.session) is request:
            self._finish(request, Finish.ABORT)

    def release(self, session: str) -> None:
        self.abort(session)
        self._slots.release(session)

    def fail(self, failure: EngineFailure) -> None:
        """Give ``failure`` to every request and forget all keys: a broken step may have left them half written."""
        for request in (*self._pending, *self._running.values()):
            error = EngineFailure(str(failure))  # one each: raising writes a traceback into the exception
            error.__cause__ = failure.__cause__
            request.future.set_exception(error)
        self._pending.clear()
        for slot in list(self._running):
            self._slots.retire(slot)
        self._running.clear()
        self._slots.forget_all()
        self._cache.clear()

    def switch(self, version: int, tensors: Mapping[str, Tensor]) -> int:
        if version < self.version:
            raise EngineFailure(f"weights of version {version} are older than version {self.version} now in effect")
        self._decoder.load(tensors)
        self.version = version
        self.stats.switches += 1
        if not self._keep_kv_on_switch:
            self._recompute()
        return version

    def score(self, token_ids: Sequence[int], temperature: float, k: int) -> TopScores:
        return self._decoder.score(torch.tensor(token_ids), temperature, k)

    def _find(self, session: str) -> Request | None:
        return next((r for r in (*self._running.values(), *self._pending) if r.session == session), None)

    def _admit(self) -> dict[Slot, Run]:
        runs: dict[Slot, Run] = {}
        num_tokens = 0
        while self._pending and num_tokens < PREFILL_TOKENS:
            request = self._pending[0]
            slot = self._slots.admit(request.session, request.prompt_ids, self.version)
            if slot is None:
                break
            self._running[slot] = self._pending.popleft()
            reused = len(slot.token_ids)
            runs[slot] = Run(slot.row, reused, request.prompt_ids[reused:])
            num_tokens += len(request.prompt_ids) - reused
            self.stats.reused += reused
        self.stats.prefilled += num_tokens
        self.stats.evicted = self._slots.evicted
        return runs

    def _first_tokens(self, runs: Mapping[Slot, Run]) -> None:
        hidden = self._compute(list(runs.values()))
        for slot, run in runs.items():
            slot.token_ids.extend(run.token_ids)
        ends = torch.tensor([len(run.token_ids) for run in runs.values()]).cumsum(0) - 1
        self._accept([self._running[slot] for slot in runs], hidden[ends])

    def _next_tokens(self) -> None:
        # Idle rows in between compute a dummy token at the place their next real token will overwrite.
        rows = self._slots.rows[: self._slots.width]
        active = [slot for slot in rows if slot.is_active]
        token_ids = [self._running[slot].token_ids[-1] if slot.is_active else 0 for slot in rows]
        positions = [len(slot.token_ids) for slot in rows]
        width = 1 + max(positions[slot.row] for slot in active)
        positions_t = torch.tensor(positions)
        hidden = self._decoder.hidden(torch.tensor(token_ids), positions_t, self._cache.decode(positions_t, width))
        for slot in active:
            slot.token_ids.append(token_ids[slot.row])
        if len(active) < len(rows):
            hidden = hidden[[slot.row for slot in active]]
        self.stats.decoded += len(active)
        self._accept([self._running[slot] for slot in active], hidden)

    def _compute(self, runs: Sequence[Run]) -> Tensor:
        token_ids = torch.tensor([token_id for run in runs for token_id in run.token_ids])
        return self._decoder.hidden(token_ids, run_positions(runs), self._cache.prefill(runs))

    def _accept(self, requests: Sequence[Request], hidden: Tensor) -> None:
        """Sample the next token of each request from its last state ([B, hidden])."""
        temperatures = torch.tensor([request.params.temperature for request in requests])
        draws = torch.tensor([request.draws[len(request.token_ids)] for request in requests], dtype=torch.float64)
        token_ids, logprobs = sample(self._decoder.logits(hidden), temperatures, draws)
        for request, token_id, logprob in zip(requests, token_ids.tolist(), logprobs.tolist(), strict=True):
            request.token_ids.append(token_id)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            if token_id in request.params.stop_token_ids:
                self._finish(request, Finish.STOP)
            elif len(request.token_ids) == request.max_tokens:
                self._finish(request, Finish.LENGTH)

    def _finish(self, request: Request, finish: Finish) -> None:
        slot = next((slot for slot, running in self._running.items() if running is request), None)
        if slot is None:
            self._pending.remove(request)
        else:
            del self._running[slot]
            self._slots.retire(slot)
        request.future.set_result(request.generation(finish))

    def _recompute(self) -> None:
        """Keys of running requests under the new weights; idle sessions are prefilled again by their next request."""
        held = {slot: list(slot.token_ids) for slot in self._running}
        self._slots.forget_all()
        for slot, token_ids in held.items():
            self._compute([Run(slot.row, 0, token_ids)])
            slot.token_ids.extend(token_ids)
            slot.version = self.version
            self.stats.recomputed += len(token_ids)

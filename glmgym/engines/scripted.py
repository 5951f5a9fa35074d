"""An engine that answers from a script: the real contract without a model. For tests and for checking environments.

Its log-probs are made up, yet consistent: they depend on position, token and temperature only, so ``score`` returns
what ``generate`` returned. They are no distribution: probabilities do not add up to 1. It can be told to misbehave the
way engines do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from glmgym.engine import Finish, GenerateParams, Generation, PromptTooLong, TopScores, Weights
from glmgym.errors import EngineFailure

Script = Callable[[Sequence[int], str, int], Sequence[int]] | Sequence[Sequence[int]]

SCORING = "scoring"  # the session that faults know scoring requests by


class Fault(StrEnum):
    """One way an engine goes wrong during a request."""

    STALL = "stall"  # no answer until the request is aborted or cancelled
    CRASH = "crash"  # EngineFailure
    EXTRA_LOGPROB = "extra_logprob"  # one log-prob more than tokens
    STRIPPED_STOP = "stripped_stop"  # finish is STOP, yet the stop token is not among the ids
    ABORT = "abort"  # aborted from outside, half-way


def script_logprobs(token_ids: Sequence[int], first_position: int, temperature: float = 1.0) -> NDArray[np.float32]:
    """[n] made-up log-probs in nats, below 0, of tokens at consecutive positions of a context."""
    ids = np.asarray(token_ids, dtype=np.int64)
    return _made_up(ids, np.arange(first_position, first_position + len(ids)), temperature)


class ScriptedEngine:
    """Plays ``script`` turn by turn.

    Args:
        script: ``(prompt_ids, session, turn) -> token ids``, or the answers of turn 0, 1, ... for every session. The
            turn counts a session's requests from 0.
        fault: ``(session, turn) -> Fault | None``: what goes wrong in that request. Scoring requests are the turns of a
            session called ``SCORING``; they can stall, crash and come with a log-prob too many.
        latency_s: how long each answer takes. Weights switched meanwhile stamp the second half of the tokens.
        vocab_size: how many tokens ``score_top`` knows.

    An answer is cut after the first stop token or at ``max_tokens``; one without a stop token finishes as LENGTH.
    """

    name = "scripted"
    precision = "none/none/none"

    def __init__(
        self,
        script: Script,
        *,
        fault: Callable[[str, int], Fault | None] | None = None,
        latency_s: float = 0.0,
        context_length: int = 65_536,
        vocab_size: int = 64,
        version: int = 0,
    ) -> None:
        self._script = script
        self._fault = fault
        self._latency_s = latency_s
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._version = version
        self._turns: Counter[str] = Counter()
        self._running: dict[str, asyncio.Event] = {}  # set: abort
        self._closing = asyncio.Event()

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_length(self) -> int:
        return self._context_length

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        if self._closing.is_set():
            raise EngineFailure("the engine is closed")
        room = self._context_length - len(prompt_ids)
        if room < 1:
            raise PromptTooLong(f"a prompt of {len(prompt_ids)} tokens fills the context of {self._context_length}")
        if session in self._running:
            raise EngineFailure(f"session {session!r} already has a running request")
        turn = self._turns[session]
        self._turns[session] += 1
        fault = self._fault(session, turn) if self._fault else None
        if fault is Fault.CRASH:
            raise EngineFailure(f"scripted crash in turn {turn} of session {session!r}")
        ids, finish = _cut(self._answer(prompt_ids, session, turn), min(params.max_tokens, room), params.stop_token_ids)
        first_version = self._version
        if await self._wait(session, fault) or fault is Fault.ABORT:
            ids, finish = ids[: len(ids) // 2], Finish.ABORT
        if fault is Fault.STRIPPED_STOP and finish is Finish.STOP:
            ids = ids[:-1]
        logprobs = script_logprobs(ids, len(prompt_ids), params.temperature)
        if fault is Fault.EXTRA_LOGPROB:
            logprobs = np.append(logprobs, logprobs[-1])
        versions = np.full(len(ids), self._version, dtype=np.int32)
        versions[: len(ids) // 2] = first_version
        return Generation(np.asarray(ids, dtype=np.int32), logprobs, versions, finish)

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        return (await self.score_top(token_ids, 0, temperature=temperature)).logprobs

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        if len(token_ids) > self._context_length:
            raise PromptTooLong(f"{len(token_ids)} tokens to score do not fit the context of {self._context_length}")
        fault = await self._begin_scoring()
        logprobs = script_logprobs(token_ids[1:], 1, temperature)
        width = self._vocab_size if k < 0 else min(k, self._vocab_size)
        table = _made_up(np.arange(self._vocab_size), np.arange(1, len(token_ids))[:, None], temperature)
        top_ids = np.argsort(-table, axis=1, kind="stable")[:, :width]
        if fault is Fault.EXTRA_LOGPROB:
            logprobs = np.append(logprobs, logprobs[-1])
        return TopScores(logprobs, top_ids.astype(np.int32), np.take_along_axis(table, top_ids, axis=1))

    async def switch(self, weights: Weights) -> int:
        if weights.version < self._version:
            raise EngineFailure(f"weights of version {weights.version} are older than version {self._version}")
        self._version = weights.version
        return self._version

    async def abort(self, session: str) -> None:
        if session in self._running:
            self._running[session].set()

    async def release(self, session: str) -> None:
        """Forget the session: its next request is turn 0."""
        await self.abort(session)
        self._turns.pop(session, None)

    async def close(self) -> None:
        self._closing.set()
        for aborted in self._running.values():
            aborted.set()

    def _answer(self, prompt_ids: Sequence[int], session: str, turn: int) -> list[int]:
        if callable(self._script):
            return list(self._script(prompt_ids, session, turn))
        if turn >= len(self._script):
            raise EngineFailure(f"the script has {len(self._script)} answers; session {session!r} asked for one more")
        return list(self._script[turn])

    async def _wait(self, session: str, fault: Fault | None) -> bool:
        """True when the request was aborted while it waited."""
        if fault is not Fault.STALL and self._latency_s == 0:
            return False
        aborted = self._running[session] = asyncio.Event()
        try:
            async with asyncio.timeout(None if fault is Fault.STALL else self._latency_s):
                await aborted.wait()
        except TimeoutError:
            return False
        finally:
            del self._running[session]
        if self._closing.is_set():
            raise EngineFailure("the engine was closed")
        return True

    async def _begin_scoring(self) -> Fault | None:
        """What goes wrong in this scoring request, once its time has passed."""
        if self._closing.is_set():
            raise EngineFailure("the engine is closed")
        turn = self._turns[SCORING]
        self._turns[SCORING] += 1
        fault = self._fault(SCORING, turn) if self._fault else None
        if fault is Fault.CRASH:
            raise EngineFailure(f"scripted crash in scoring request {turn}")
        if fault is Fault.STALL or self._latency_s:
            try:
                async with asyncio.timeout(None if fault is Fault.STALL else self._latency_s):
                    await self._closing.wait()
            except TimeoutError:
                return fault
            raise EngineFailure("the engine was closed")
        return fault


def _made_up(ids: NDArray[np.int64], positions: NDArray[np.int64], temperature: float) -> NDArray[np.float32]:
    return (-(0.05 + (31 * ids + 17 * positions) % 97 / 50) / temperature).astype(np.float32)


def _cut(ids: list[int], max_tokens: int, stop_token_ids: frozenset[int]) -> tuple[list[int], Finish]:
    for index, token_id in enumerate(ids[:max_tokens]):
        if token_id in stop_token_ids:
            return ids[: index + 1], Finish.STOP
    return ids[:max_tokens], Finish.LENGTH

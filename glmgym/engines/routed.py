"""Several engines behind one: every session keeps to one of them, so that its turns find their keys there.

The engine of a session is the one with the highest hash of the two names (rendezvous hashing): the same in every
process, and when an engine leaves, only its own sessions move (GLM-5 report, section 4.1: routing by rollout id).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from glmgym.engine import Engine, GenerateParams, Generation, TopScores, Weights
from glmgym.errors import ConfigError, EngineFailure


def route(session: str, names: Sequence[str]) -> str:
    """Which of ``names`` a session belongs to, whatever their order.

    Raises:
        ValueError: there are none.
    """
    if not names:
        raise ValueError("no engine to route to")
    return max(names, key=lambda name: blake2b(f"{len(name)}:{name}{session}".encode(), digest_size=8).digest())


class RoutedEngine:
    """Sessions spread over ``engines`` by their names; weights go to all of them.

    Scoring has no session: it goes to the engine with the fewest texts to score.

    Raises:
        ConfigError: no engines, or they differ in precision or context, so that it matters where an attempt is made.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        if not engines:
            raise ConfigError("a routed engine needs at least one engine")
        kinds = {name: (engine.precision, engine.context_length) for name, engine in engines.items()}
        if len(set(kinds.values())) > 1:
            raise ConfigError(f"engines of different precision or context cannot stand in for each other: {kinds}")
        self._engines = dict(engines)
        self._scoring: Counter[str] = Counter(dict.fromkeys(engines, 0))

    @property
    def name(self) -> str:
        return "+".join(engine.name for engine in self._engines.values())

    @property
    def precision(self) -> str:
        return next(iter(self._engines.values())).precision

    @property
    def version(self) -> int:
        """The oldest in effect anywhere."""
        return min(engine.version for engine in self._engines.values())

    @property
    def context_length(self) -> int:
        return next(iter(self._engines.values())).context_length

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        return await self._of(session).generate(prompt_ids, params, session=session)

    async def score(self, token_ids: Sequence[int], *, temperature: float = 1.0) -> NDArray[np.float32]:
        return (await self.score_top(token_ids, 0, temperature=temperature)).logprobs

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        name = min(self._scoring, key=self._scoring.__getitem__)
        self._scoring[name] += 1
        try:
            return await self._engines[name].score_top(token_ids, k, temperature=temperature)
        finally:
            self._scoring[name] -= 1

    async def switch(self, weights: Weights) -> int:
        """Put weights in effect everywhere.

        Raises:
            EngineFailure: they are older than those of any engine, and nothing has changed; or an engine refused them,
                and the message says which of them have changed.
        """
        newest = max(engine.version for engine in self._engines.values())
        if weights.version < newest:
            raise EngineFailure(f"weights of version {weights.version} are older than version {newest}")
        answers = await asyncio.gather(*(_switched(engine, weights) for engine in self._engines.values()))
        if any(answers):
            told = ", ".join(
                f"{name}: {answer or 'in effect'}" for name, answer in zip(self._engines, answers, strict=True)
            )
            raise EngineFailure(f"not every engine took the weights of version {weights.version} ({told})")
        return self.version

    async def abort(self, session: str) -> None:
        await self._of(session).abort(session)

    async def release(self, session: str) -> None:
        await self._of(session).release(session)

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))

    def _of(self, session: str) -> Engine:
        return self._engines[route(session, tuple(self._engines))]


async def _switched(engine: Engine, weights: Weights) -> str | None:
    """Why an engine refused the weights."""
    try:
        await engine.switch(weights)
    except EngineFailure as error:
        return str(error)
    return None

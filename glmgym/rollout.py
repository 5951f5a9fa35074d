"""One trajectory, from an opened box to a frozen record. Owned here: budgets, stop rules, capture of every token.

Stop rules, in the order they are looked at each turn:

1. ``max_turns`` assistant turns were taken             -> MAX_TURNS
2. the context is full, or the observation won't fit    -> CONTEXT_FULL
3. ``max_sampled_tokens`` were sampled, or ``wall_s``    -> BUDGET (a running generation is aborted, its ids kept)
4. the environment says terminated                      -> DONE
5. anything broke                                       -> FAILED, with the origin; such a trajectory has no reward

Every other stop is graded, with a time budget of its own. Sampled ids are appended exactly as the engine returned them:
nothing here decodes and encodes a sampled token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from glmgym.chat import Chat
from glmgym.engine import Engine, Finish, GenerateParams, Generation, SamplingSettings
from glmgym.env import Env, Opening, ScoreView, Step, Task
from glmgym.errors import BoundaryFailure, EngineFailure, EnvFailure, SandboxFailure, ScorerFailure, boundary
from glmgym.messages import Message
from glmgym.registry import EnvSpec
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider
from glmgym.settings import Settings
from glmgym.trajectory import (
    Failure,
    Outcome,
    Provenance,
    Reward,
    Segment,
    SegmentEnd,
    Span,
    SpanKind,
    Stop,
    Trajectory,
)

R = TypeVar("R")


class Budget(Settings):
    """What one trajectory may spend."""

    max_turns: int | None = None  # assistant turns; None takes the environment's own limit
    max_turn_tokens: int = 256  # sampled tokens of one turn; a longer turn is cut and the loop goes on
    max_sampled_tokens: int = 4096  # sampled tokens of the whole trajectory
    max_context_tokens: int | None = None  # None takes the engine's
    wall_s: float = 120.0  # the policy's time, from the opening message on
    score_s: float = 60.0  # grading's own time, starting after the policy's


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt to be made."""

    id: str
    task: Task
    spec: EnvSpec
    seed: int
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class House:
    """What every trajectory of a run shares."""

    engine: Engine
    chat: Chat
    provider: SandboxProvider | None
    budget: Budget = field(default_factory=Budget)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)


async def run_trajectory(job: Job, house: House) -> Trajectory:
    """Play one episode and grade it.

    Returns:
        The frozen trajectory; when something broke at a boundary, its outcome is FAILED and says where.

    Raises:
        Exception: a programming mistake outside every boundary, or cancellation.
    """
    episode = _Episode(job, house)
    try:
        async with _opened_box(house, job.spec.box) as box:
            stop = await episode.interact(box)
            outcome = Outcome(stop, await episode.grade(box))
    except BoundaryFailure as failure:
        outcome = Outcome(Stop.FAILED, failure=Failure.of(failure))
    finally:
        await house.engine.release(job.id)
    return episode.freeze(outcome)


class _Episode:
    """The mutable half of a trajectory while it runs."""

    def __init__(self, job: Job, house: House) -> None:
        self.job = job
        self.house = house
        self.env: Env | None = None
        self.messages: list[Message] = []
        self.context: list[int] = []  # what the engine sees; only ever appended to within a segment
        self.spans: list[Span] = []
        self.segments: list[Segment] = []
        self.opening: Opening | None = None
        self.image_digest = ""
        self.timings = {"reset": 0.0, "generate": 0.0, "step": 0.0, "score": 0.0}
        self.num_sampled = 0
        self.num_turns = 0

    async def interact(self, box: Sandbox | None) -> Stop:
        """Reset, then turns until a stop rule fires."""
        budget, engine = self.house.budget, self.house.engine
        self.image_digest = box.image_digest if box is not None else ""
        deadline = time.monotonic() + budget.wall_s
        self.env, self.opening = await self._reset(box, deadline)
        self._append(SpanKind.PROMPT, self.house.chat.opening(self.opening.messages, self.opening.tools))
        limit = min(budget.max_context_tokens or engine.context_length, engine.context_length)
        if len(self.context) >= limit:
            raise EnvFailure(f"the opening prompt has {len(self.context)} tokens; the context holds {limit}")
        max_turns = budget.max_turns or self.job.spec.max_turns
        while True:
            room = min(limit - len(self.context), budget.max_sampled_tokens - self.num_sampled)
            generation = await self._generate(min(room, budget.max_turn_tokens), deadline)
            if generation.finish is Finish.ABORT:
                return Stop.BUDGET
            if generation.finish is Finish.LENGTH and room <= budget.max_turn_tokens:
                return Stop.CONTEXT_FULL if len(self.context) >= limit else Stop.BUDGET
            step = await self._step(generation, deadline)
            if step is None:
                return Stop.BUDGET
            if step.terminated:
                return Stop.DONE
            if step.truncated or self.num_turns >= max_turns:
                return Stop.MAX_TURNS
            if self.num_sampled >= budget.max_sampled_tokens:
                return Stop.BUDGET
            if not self._observe(step.observation, limit):
                return Stop.CONTEXT_FULL

    async def grade(self, box: Sandbox | None) -> tuple[Reward, ...]:
        """Rewards from the environment's scorer, in boxes that are closed afterwards."""
        assert self.env is not None
        fresh: list[Sandbox] = []
        provider, spec = self.house.provider, self.job.spec.box

        async def open_box() -> Sandbox:
            if provider is None:
                raise SandboxFailure("the scorer asked for a box, but this run has no sandbox backend")
            fresh.append(await provider.open(spec or BoxSpec()))
            return fresh[-1]

        view = ScoreView(self.job.task, tuple(self.messages), box, open_box)
        started = time.monotonic()
        try:
            with boundary(ScorerFailure, f"score {self.job.task.id}"):
                async with asyncio.timeout(self.house.budget.score_s):
                    rewards = tuple(await self.env.score(view))
        finally:
            for opened in fresh:
                await opened.close()
            self.timings["score"] += time.monotonic() - started
        if not rewards:
            raise ScorerFailure(f"score {self.job.task.id}: the environment returned no reward")
        return rewards

    def freeze(self, outcome: Outcome) -> Trajectory:
        """Everything recorded so far, as the final record."""
        if self.spans:
            self.segments.append(Segment(tuple(self.spans), SegmentEnd.END))
            self.spans = []
        answer = next((m.content for m in reversed(self.messages) if m.role == "assistant" and not m.tool_calls), "")
        return Trajectory(
            id=self.job.id,
            task_id=self.job.task.id,
            env_id=self.job.spec.id,
            segments=tuple(self.segments),
            outcome=outcome,
            provenance=self._provenance(),
            group_id=self.job.group_id,
            family=self.job.task.family,
            domain=self.job.task.domain,
            final_answer=answer,
        )

    async def _reset(self, box: Sandbox | None, deadline: float) -> tuple[Env, Opening]:
        started = time.monotonic()
        with boundary(EnvFailure, f"reset {self.job.spec.id} on {self.job.task.id}"):
            env = self.job.spec.make()
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                opening = await env.reset(self.job.task, box)
        self.messages = list(opening.messages)
        self.timings["reset"] += time.monotonic() - started
        return env, opening

    async def _generate(self, max_tokens: int, deadline: float) -> Generation:
        """One assistant turn; past the deadline the engine is told to stop and its partial ids are kept."""
        engine, started = self.house.engine, time.monotonic()
        params = GenerateParams(
            max_tokens=max_tokens,
            stop_token_ids=self.house.chat.stop_ids,
            temperature=self.house.sampling.temperature,
            seed=_turn_seed(self.job.seed, self.num_turns),
        )
        with boundary(EngineFailure, f"generate turn {self.num_turns} of {self.job.id}"):
            request = asyncio.ensure_future(engine.generate(self.context, params, session=self.job.id))
            try:
                done, _ = await asyncio.wait({request}, timeout=max(0.0, deadline - started))
                if not done:
                    await engine.abort(self.job.id)
                generation = await request
            except asyncio.CancelledError:
                request.cancel()
                raise
        self.timings["generate"] += time.monotonic() - started
        if len(generation.token_ids):
            self._append(SpanKind.ACTION, generation.token_ids, generation)
        self.num_turns += 1
        return generation

    async def _step(self, generation: Generation, deadline: float) -> Step | None:
        """The environment's answer to the turn just sampled; None when the wall time ran out."""
        assert self.env is not None
        assert self.opening is not None
        reply = self.house.chat.parse(generation.token_ids, self.opening.tools)
        self.messages.append(reply)
        started = time.monotonic()
        try:
            with boundary(EnvFailure, f"step {self.num_turns} of {self.job.spec.id} on {self.job.task.id}"):
                step, in_time = await _within(self.env.step(reply), max(0.0, deadline - started))
        finally:
            self.timings["step"] += time.monotonic() - started
        if not in_time or step is None:
            return None
        self.messages.extend(step.observation)
        return step

    def _observe(self, observation: tuple[Message, ...], limit: int) -> bool:
        """Append the observation as a delta, forking the segment where the dialect rewrites history; False if full."""
        chat = self.house.chat
        delta = chat.delta(observation, last_id=self.context[-1])
        if len(self.context) + len(delta) >= limit:
            return False
        if chat.must_fork(observation):
            self.segments.append(Segment(tuple(self.spans), SegmentEnd.FORKED))
            self.spans = list(chat.collapse(self.spans))
            self.context = [int(i) for span in self.spans for i in span.token_ids]
        self._append(SpanKind.OBSERVATION, delta)
        return True

    def _append(self, kind: SpanKind, ids: object, generation: Generation | None = None) -> None:
        token_ids = np.asarray(ids, dtype=np.int32)
        span = Span(
            kind,
            token_ids,
            generation.logprobs if generation is not None else None,
            generation.versions if generation is not None else None,
        )
        self.spans.append(span)
        self.context.extend(token_ids.tolist())
        if kind.is_sampled:
            self.num_sampled += len(span)

    def _provenance(self) -> Provenance:
        chat, engine = self.house.chat, self.house.engine
        tools = [tool.to_openai() for tool in self.opening.tools] if self.opening else []
        return Provenance(
            tokenizer_sha256=chat.tokenizer.sha256,
            template_sha256=chat.template_sha256,
            tools_sha256=hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest(),
            sampling={**self.house.sampling.model_dump(), "logprobs": "processed", "seed": self.job.seed},
            engine=engine.name,
            precision=engine.precision,
            env_version=self.job.spec.id,
            image_digest=self.image_digest,
            timings_s={name: round(seconds, 6) for name, seconds in self.timings.items()},
        )


@asynccontextmanager
async def _opened_box(house: House, spec: BoxSpec | None) -> AsyncIterator[Sandbox | None]:
    if spec is None:
        yield None
        return
    if house.provider is None:
        raise SandboxFailure("this environment needs a box, but the run has no sandbox backend")
    with boundary(SandboxFailure, f"open a box of {house.provider.name}"):
        box = await house.provider.open(spec)
    try:
        yield box
    finally:
        await box.close()


async def _within(work: Awaitable[R], seconds: float) -> tuple[R | None, bool]:
    """The result and True, or None and False when the time ran out (a TimeoutError of the work itself goes through)."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return task.result(), True
    task.cancel()
    await asyncio.wait({task}, timeout=5.0)
    return None, False


def _turn_seed(seed: int, turn: int) -> int:
    """A request seed that is the same in every process and differs between turns and trajectories."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest(), "little") >> 1


def job_seed(run_seed: int, name: str) -> int:
    """The seed of one attempt, from the run's seed and the attempt's name; the same in every process."""
    return _turn_seed(run_seed, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "little"))


def mean_timings(trajectories: list[Trajectory]) -> Mapping[str, float]:
    """Mean seconds per phase over trajectories, by name."""
    names = {name for t in trajectories for name in t.provenance.timings_s}
    return {n: float(np.mean([t.provenance.timings_s.get(n, 0.0) for t in trajectories])) for n in sorted(names)}

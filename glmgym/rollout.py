"""One trajectory, from an opened box to a frozen record. Owned here: budgets, stop rules, capture of every token.

Stop rules, in the order they are looked at each turn; the first that fits names the stop:

1. ``wall_s`` is over: a running generation is aborted and its ids are kept, a running step is cancelled -> BUDGET
2. the turn was cut by the end of the context -> CONTEXT_FULL, or by the last of ``max_sampled_tokens`` -> BUDGET
3. the environment says terminated -> DONE
4. the environment says truncated, or ``max_turns`` assistant turns were taken -> MAX_TURNS
5. ``max_sampled_tokens`` were sampled -> BUDGET
6. the observation does not leave room for one sampled token -> CONTEXT_FULL
7. the observation asked for a summary (``House.compaction``): the wall time is over while it is written, or the last of
   ``max_sampled_tokens`` went into it -> BUDGET; the context that goes on from it is too long at once -> CONTEXT_FULL

Management (``House.management``) shortens the context when an observation arrives, before rule 6 looks at it. Neither
the environment nor the scorer nor the messages of the record are managed: only what the policy sees next.

A summary is sampled with the turns' own settings and costs sampled tokens and wall time. It is no turn: the environment
and the scorer never see it, nothing in it is executed, and one that is cut by its length is used as it is.

Each stop is graded, with a time budget of its own. Whatever breaks on the way, grading included, ends as FAILED
with its origin; such a trajectory has no reward. Sampled ids are appended exactly as the engine returned them: nothing
here decodes and encodes a sampled token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import Field

from glmgym.chat import Chat
from glmgym.compaction import CompactionSettings
from glmgym.context import Context, Next, check_compaction, check_management
from glmgym.engine import Engine, Finish, GenerateParams, Generation, SamplingSettings
from glmgym.env import Env, Opening, ScoreView, Step, Task
from glmgym.errors import (
    BoundaryFailure,
    ConfigError,
    EngineFailure,
    EnvFailure,
    SandboxFailure,
    ScorerFailure,
    boundary,
)
from glmgym.folding import Management
from glmgym.messages import Message, ToolSpec
from glmgym.registry import EnvSpec
from glmgym.rewards import RewardMix
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider
from glmgym.settings import Settings
from glmgym.trajectory import (
    Failure,
    Outcome,
    Provenance,
    Reward,
    SpanKind,
    Stop,
    Trajectory,
)

R = TypeVar("R")

FLAGS = ("failed_calls", "guarded")  # of ``Step.info``, kept in a transcript
FLAGGED = "flagged: "  # in the reason of a reward: its grader found a sign of cheating; kept as "flagged_grade"
_GRACE_S = 5.0  # what a cancelled call, or an engine told to abort, gets to come to an end


class OutOfTime(TimeoutError):
    """A call outlived its time budget; its own ``TimeoutError`` is something else."""


class Budget(Settings):
    """What one trajectory may spend; a task that names its own seconds has those."""

    max_turns: int | None = Field(default=None, ge=1)  # assistant turns; None takes the environment's own limit
    max_turn_tokens: int = Field(default=256, ge=1)  # sampled tokens of one turn; a longer one is cut, and plays on
    max_sampled_tokens: int = Field(default=4096, ge=1)  # sampled tokens of the whole trajectory
    max_context_tokens: int | None = Field(default=None, ge=1)  # None takes the engine's
    wall_s: float = Field(default=120.0, gt=0)  # the policy's time, from the opening message on; a reset has as much
    score_s: float = Field(default=60.0, gt=0)  # grading's own time, starting after the policy's


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
    """What every trajectory of a run shares.

    Raises:
        ConfigError: the compaction's reserve holds neither request and summary, or does not fit into the context; the
            management's limit does not fit into it; or there are both.
    """

    engine: Engine
    chat: Chat
    provider: SandboxProvider | None
    budget: Budget = field(default_factory=Budget)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    compaction: CompactionSettings | None = None  # None: a full context ends the episode
    rewards: RewardMix = field(default_factory=RewardMix)  # beyond the environment's own
    management: Management | None = None  # instead of compaction: what of its history the policy is shown

    def __post_init__(self) -> None:
        if self.compaction is not None and self.management is not None:
            raise ConfigError(
                "compaction and context management (keep-recent-k, discard-all) exclude each other: both decide what "
                "becomes of a long history; leave out [compaction], or --keep-recent and --discard-above"
            )
        if self.compaction is not None:
            check_compaction(self.chat, self.compaction, self.context_limit)
        if self.management is not None:
            check_management(self.management, self.context_limit)

    @property
    def context_limit(self) -> int:
        """Most tokens (prompt and sampled) one context may hold."""
        return min(self.budget.max_context_tokens or self.engine.context_length, self.engine.context_length)


@dataclass(frozen=True, slots=True)
class Request:
    """What one request to the policy cost. ``cached_tokens`` of the prompt were known already; ``None``: not told."""

    prompt_tokens: int
    sampled_tokens: int
    wall_s: float
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode as messages: what the environment and the policy said to each other, and what it cost.

    ``flags`` count what a reader should know of: calls that failed, calls that a guard answered, a grade with a flag,
    restarts of a managed history.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    outcome: Outcome
    timings_s: Mapping[str, float]
    requests: tuple[Request, ...]
    flags: Mapping[str, int]
    image_digest: str = ""


async def run_trajectory(job: Job, house: House) -> Trajectory:
    """Play one episode and grade it.

    Returns:
        The frozen trajectory; when something broke at a boundary, its outcome is FAILED and says where.

    Raises:
        Exception: a programming mistake outside every boundary, or cancellation.
    """
    return (await run_recorded(job, house))[0]


async def run_recorded(job: Job, house: House) -> tuple[Trajectory, Transcript]:
    """``run_trajectory``, and the same episode as messages."""
    episode = _TokenEpisode(job, house)
    transcript = await episode.play()
    return episode.freeze(transcript), transcript


class BudgetedEpisode(ABC):
    """The mutable half of an attempt while it runs: box, environment, time, grade. Who takes the turns is left open.

    A subclass writes ``converse``; ``play`` does the rest and makes an outcome of what breaks at a boundary.
    """

    def __init__(self, job: Job, provider: SandboxProvider | None, budget: Budget, rewards: RewardMix) -> None:
        self.job = job
        self.provider = provider
        self.budget = budget
        self.rewards = rewards
        self.env: Env | None = None
        self.messages: list[Message] = []
        self.opening: Opening | None = None
        self.image_digest = ""
        self.timings = {"reset": 0.0, "generate": 0.0, "step": 0.0, "score": 0.0}
        self.requests: list[Request] = []
        self.flags: Counter[str] = Counter()
        self.num_turns = 0

    @property
    def wall_s(self) -> float:
        return self.job.task.wall_s or self.budget.wall_s

    @property
    def max_turns(self) -> int:
        return self.budget.max_turns or self.job.spec.max_turns

    @abstractmethod
    async def converse(self, opening: Opening, deadline: float) -> Stop:
        """Turns until a stop rule fires."""

    async def play(self) -> Transcript:
        """The whole episode: box, reset, turns, grade.

        Raises:
            Exception: a programming mistake outside every boundary, or cancellation.
        """
        try:
            async with _opened_box(self.provider, self.job.spec.box_of(self.job.task)) as box:
                self.image_digest = box.image_digest if box is not None else ""
                self.env, self.opening = await self._reset(box)
                stop = await self.converse(self.opening, time.monotonic() + self.wall_s)
                outcome = Outcome(stop, await self.grade(box))
        except BoundaryFailure as failure:
            outcome = Outcome(Stop.FAILED, failure=Failure.of(failure))
        return Transcript(
            tuple(self.messages),
            self.opening.tools if self.opening is not None else (),
            outcome,
            {name: round(seconds, 6) for name, seconds in self.timings.items()},
            tuple(self.requests),
            dict(self.flags),
            self.image_digest,
        )

    async def step(self, reply: Message, deadline: float) -> Step | None:
        """The environment's answer to the turn just taken; None when the wall time ran out."""
        assert self.env is not None
        self.messages.append(reply)
        started = time.monotonic()
        with boundary(EnvFailure, f"step {self.num_turns} of {self.job.spec.id} on {self.job.task.id}"):
            try:
                step = await within(self.env.step(reply), max(0.0, deadline - started))
            except OutOfTime:
                return None
            finally:
                self.timings["step"] += time.monotonic() - started
            self.messages.extend(step.observation)
            if not (step.observation or step.terminated or step.truncated):
                raise EnvFailure(f"step {self.num_turns} of {self.job.spec.id}: neither an observation nor an end")
        self.flags.update(_flags_of(step))
        return step

    def note_restarts(self, count: int) -> None:
        """How often the history was discarded so far; a flag once it was."""
        if count:
            self.flags["restarts"] = count

    async def grade(self, box: Sandbox | None) -> tuple[Reward, ...]:
        """Rewards from the environment's scorer and the run's own, in boxes that are closed afterwards."""
        what, started = f"score {self.job.task.id}", time.monotonic()
        async with AsyncExitStack() as fresh:

            async def open_box(spec: BoxSpec | None = None) -> Sandbox:
                own = self.job.spec.box_of(self.job.task) or BoxSpec()
                return await fresh.enter_async_context(_open(self.provider, spec or own))

            view = ScoreView(self.job.task, tuple(self.messages), box, open_box)
            with boundary(ScorerFailure, what):
                rewards = await within(self._rewards(view, what), self.job.task.score_s or self.budget.score_s)
        self.timings["score"] += time.monotonic() - started
        if any(FLAGGED in reward.reason for reward in rewards):
            self.flags["flagged_grade"] += 1
        return rewards

    async def _rewards(self, view: ScoreView, what: str) -> tuple[Reward, ...]:
        """What the environment gives, then what the run adds to it."""
        assert self.env is not None
        own = tuple(await self.env.score(view))
        if not own or not all(isinstance(reward, Reward) for reward in own):
            raise ScorerFailure(f"{what}: wanted rewards, the environment returned {own!r}")
        return await self.rewards.grade(own, view)

    async def _reset(self, box: Sandbox | None) -> tuple[Env, Opening]:
        started = time.monotonic()
        with boundary(EnvFailure, f"reset {self.job.spec.id} on {self.job.task.id}"):
            env = self.job.spec.make()
            opening = await within(env.reset(self.job.task, box), self.wall_s)
            self.messages = list(opening.messages)
        self.timings["reset"] += time.monotonic() - started
        return env, opening


class _TokenEpisode(BudgetedEpisode):
    """An episode whose turns are sampled by an engine, token by token."""

    def __init__(self, job: Job, house: House) -> None:
        super().__init__(job, house.provider, house.budget, house.rewards)
        self.house = house
        self.context: Context | None = None

    async def converse(self, opening: Opening, deadline: float) -> Stop:
        async with _session(self.house.engine, self.job.id):
            return await self._interact(opening, deadline)

    def freeze(self, transcript: Transcript) -> Trajectory:
        """Everything recorded so far, as the final record."""
        last = next((message for message in reversed(self.messages) if message.role == "assistant"), None)
        return Trajectory(
            id=self.job.id,
            task_id=self.job.task.id,
            env_id=self.job.spec.id,
            segments=self.context.segments() if self.context is not None else (),
            outcome=transcript.outcome,
            provenance=self._provenance(),
            group_id=self.job.group_id,
            family=self.job.task.family,
            domain=self.job.task.domain,
            final_answer=last.content if last is not None and not last.tool_calls else "",
        )

    async def _interact(self, opening: Opening, deadline: float) -> Stop:
        budget, house = self.budget, self.house
        limit = house.context_limit
        self.context = context = Context(
            house.chat, opening, limit=limit, compaction=house.compaction, management=house.management
        )
        if context.room < 1:
            raise EnvFailure(f"the opening prompt has {len(context.ids)} tokens; the context holds {limit}")
        while True:
            room = min(context.room, budget.max_sampled_tokens - context.num_sampled)
            generation = await self._generate(context, SpanKind.ACTION, min(room, budget.max_turn_tokens), deadline)
            if generation.finish is Finish.ABORT:
                return Stop.BUDGET
            if generation.finish is Finish.LENGTH and room <= budget.max_turn_tokens:
                return Stop.CONTEXT_FULL if context.room < 1 else Stop.BUDGET
            reply = house.chat.parse(generation.token_ids, opening.tools)
            step = await self.step(reply, deadline)
            if step is None:
                return Stop.BUDGET
            if step.terminated:
                return Stop.DONE
            if step.truncated or self.num_turns >= self.max_turns:
                return Stop.MAX_TURNS
            if context.num_sampled >= budget.max_sampled_tokens:
                return Stop.BUDGET
            after = context.observe(step.observation)
            self.note_restarts(context.num_restarts)
            if after is Next.NOTHING:
                return Stop.CONTEXT_FULL
            if after is Next.SUMMARY and (stop := await self._compact(context, deadline)) is not None:
                return stop

    async def _generate(self, context: Context, kind: SpanKind, max_tokens: int, deadline: float) -> Generation:
        """One turn or summary; past the deadline the engine is told to stop and its partial ids are kept."""
        engine, started = self.house.engine, time.monotonic()
        params = GenerateParams(
            max_tokens=max_tokens,
            stop_token_ids=self.house.chat.stop_ids,
            temperature=self.house.sampling.temperature,
            seed=turn_seed(self.job.seed, len(self.requests)),
        )
        with boundary(EngineFailure, f"generate {kind} {len(self.requests)} of {self.job.id}"):
            request = asyncio.ensure_future(engine.generate(context.ids, params, session=self.job.id))
            try:
                await asyncio.wait({request}, timeout=max(0.0, deadline - started))
                if not request.done():
                    await engine.abort(self.job.id)
                generation = await within(request, _GRACE_S)
            finally:
                request.cancel()
        self.timings["generate"] += time.monotonic() - started
        wall_s = round(time.monotonic() - started, 6)
        self.requests.append(Request(len(context.ids), len(generation.token_ids), wall_s))
        context.sample(kind, generation)
        self.num_turns += kind is SpanKind.ACTION
        return generation

    async def _compact(self, context: Context, deadline: float) -> Stop | None:
        """Have the summary written that was just asked for and go on from it; a stop when that ends the episode."""
        budget, settings = self.house.budget, self.house.compaction
        assert settings is not None
        room = min(context.room, budget.max_sampled_tokens - context.num_sampled)
        generation = await self._generate(context, SpanKind.SUMMARY, min(room, settings.max_summary_tokens), deadline)
        if generation.finish is Finish.ABORT or context.num_sampled >= budget.max_sampled_tokens:
            return Stop.BUDGET
        return None if context.resume(generation.token_ids.tolist()) else Stop.CONTEXT_FULL

    def _provenance(self) -> Provenance:
        chat, engine = self.house.chat, self.house.engine
        tools = [tool.to_openai() for tool in self.opening.tools] if self.opening else []
        return Provenance(
            tokenizer_sha256=chat.tokenizer.sha256,
            template_sha256=chat.template_sha256,
            tools_sha256=hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest(),
            sampling={**self.house.sampling.model_dump(), "logprobs": "processed", "seed": self.job.seed},
            compaction=self.house.compaction.model_dump() if self.house.compaction is not None else {},
            management=self.house.management.model_dump() if self.house.management is not None else {},
            engine=engine.name,
            precision=engine.precision,
            env_version=self.job.spec.id,
            image_digest=self.image_digest,
            timings_s={name: round(seconds, 6) for name, seconds in self.timings.items()},
        )


@asynccontextmanager
async def _session(engine: Engine, name: str) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with boundary(EngineFailure, f"release {name}"):
            await engine.release(name)


@asynccontextmanager
async def _opened_box(provider: SandboxProvider | None, spec: BoxSpec | None) -> AsyncIterator[Sandbox | None]:
    if spec is None:
        yield None
        return
    async with _open(provider, spec) as box:
        yield box


@asynccontextmanager
async def _open(provider: SandboxProvider | None, spec: BoxSpec) -> AsyncIterator[Sandbox]:
    if provider is None:
        raise SandboxFailure("a box is needed, but this run has no sandbox backend")
    with boundary(SandboxFailure, f"open a box of {provider.name}"):
        box = await provider.open(spec)
    try:
        yield box
    finally:
        await box.close()


async def within(work: Awaitable[R], seconds: float) -> R:
    """The result of ``work``; it runs as a task of its own, so that work which ignores cancellation holds up nobody.

    Raises:
        OutOfTime: it took longer. It was cancelled, and given a moment to come to an end.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # marks a late exception as seen
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=_GRACE_S)
    finally:
        task.cancel()
    raise OutOfTime(f"no answer within {seconds:g} s")


def _flags_of(step: Step) -> dict[str, int]:
    """How often each of ``FLAGS`` happened in a step: a number in its info, or a list of events."""
    found = {name: step.info[name] for name in FLAGS if step.info.get(name)}
    return {name: value if isinstance(value, int) else len(value) for name, value in found.items()}


def turn_seed(seed: int, turn: int) -> int:
    """A request seed that is the same in every process and differs between turns and trajectories."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest(), "little") >> 1


def job_seed(run_seed: int, name: str) -> int:
    """The seed of one attempt, from the run's seed and the attempt's name; the same in every process."""
    return turn_seed(run_seed, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "little"))

"""Small real parts for tests of many turns: the shipped tokenizer, environments of a few lines, and one way to play."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glmgym.chat import Chat, load_tokenizer
from glmgym.compaction import CompactionSettings
from glmgym.engine import GenerateParams, Generation
from glmgym.engines import Fault, Script, ScriptedEngine, script_logprobs
from glmgym.env import Env, ScoreView, Split, Step, Task
from glmgym.errors import SandboxDead
from glmgym.folding import Management
from glmgym.messages import Message, ToolCall, assistant
from glmgym.registry import EnvSpec
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider
from glmgym.tool import Tool, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward, Trajectory

TOKENIZER = load_tokenizer(Path(__file__).parents[1] / "trainers" / "glmgym_trainers" / "assets" / "tokenizer")
CHAT = Chat(TOKENIZER, "glm47", thinking=False)
THINKING = Chat(TOKENIZER, "glm47", thinking=True)


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


class Echo(ToolEnv):
    """One tool; the answer "done" is worth 1. Keeps what the scorer saw."""

    tools: Sequence[Tool] = (look,)
    seen: tuple[Message, ...] = ()
    steps = 0

    async def step(self, reply: Message) -> Step:
        self.steps += 1
        return await super().step(reply)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        self.seen = view.messages
        return (Reward("done", float(view.answer == "done")),)


class Counting(Echo):
    """Every answer of the tool is another one."""

    async def step(self, reply: Message) -> Step:
        step = await super().step(reply)
        return step if step.terminated else Step((Message("tool", answer(self.steps)),))


def answer(n: int) -> str:
    """What the tool of a ``Counting`` says for the n-th time, n < 10."""
    return f"nothing {'abcdefghij'[n]}"


class Numbered:
    """Tasks 0 to 999 of each split; even ones of family "even", odd ones of family "odd"."""

    def size(self, split: Split) -> int:
        return 1000

    def task(self, split: Split, index: int) -> Task:
        return Task(id=f"{split}/{index}", instruction=f"task {index}", family=("even", "odd")[index % 2])


class NotedEngine(ScriptedEngine):
    """A scripted engine that keeps a copy of every prompt, request and answer."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self.prompts: list[list[int]] = []
        self.requests: list[GenerateParams] = []
        self.answers: list[Generation] = []

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        self.prompts.append(list(prompt_ids))
        self.requests.append(params)
        self.answers.append(await super().generate(prompt_ids, params, session=session))
        return self.answers[-1]

    @property
    def sampled(self) -> list[int]:
        """Every id of every answer, in order."""
        return [int(i) for answer in self.answers for i in answer.token_ids]


LOOK = CHAT.turn(assistant("", ToolCall("call_0", "look", {"where": "here"})))  # one turn that calls the tool
DONE = CHAT.turn(assistant("done"))  # one turn that answers


def spec_of(make: Callable[[], Env], *, box: BoxSpec | None = None, max_turns: int = 16) -> EnvSpec:
    return EnvSpec("echo-v0", make, Numbered(), box, max_turns=max_turns)


async def play(
    env: Env,
    turns: Script,
    *,
    chat: Chat = CHAT,
    budget: Budget | None = None,
    provider: SandboxProvider | None = None,
    fault: Callable[[str, int], Fault | None] | None = None,
    context_length: int = 4096,
    max_turns: int = 16,
    compaction: CompactionSettings | None = None,
    management: Management | None = None,
) -> tuple[Trajectory, NotedEngine]:
    """One episode of ``env`` against scripted turns; with a provider it gets a box."""
    engine = NotedEngine(turns, fault=fault, context_length=context_length)
    spec = spec_of(lambda: env, box=BoxSpec() if provider is not None else None, max_turns=max_turns)
    job = Job("t1", spec.tasks.task("train", 0), spec, seed=7)
    house = House(engine, chat, provider, budget or Budget(), compaction=compaction, management=management)
    return await run_trajectory(job, house), engine


def assert_all_tokens_are_accounted_for(trajectory: Trajectory, engine: NotedEngine) -> None:
    """Every sampled token is trained once; before each turn a segment holds what the engine received, to the id."""
    masks = [segment.sampled_mask for segment in trajectory.segments]
    trained = [segment.token_ids[mask] for segment, mask in zip(trajectory.segments, masks, strict=True)]
    assert np.concatenate(trained).tolist() == engine.sampled
    asked = zip(engine.prompts, engine.answers, strict=True)
    prompts = iter([prompt for prompt, answer in asked if len(answer.token_ids)])
    for segment in trajectory.segments:
        before = 0
        for span in segment.spans:
            if span.kind.is_sampled:
                assert segment.token_ids[:before].tolist() == next(prompts)
                assert span.logprobs is not None
                assert np.array_equal(span.logprobs, script_logprobs(span.token_ids.tolist(), before))
            before += len(span)
    assert next(prompts, None) is None


async def is_closed(box: Sandbox) -> bool:
    try:
        await box.write("/probe", b"")
    except SandboxDead:
        return True
    return False

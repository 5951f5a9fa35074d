"""The rollout loop on a scripted episode of 128 turns and 64,000 tokens, with no time spent in the engine.

In every fifth turn the engine samples a split of the text that ``encode`` would not make. Beside ours, in the same run:
verifiers 0.4.0 (see ``rollout_verifiers.py``), and a loop that renders the whole conversation again before each turn.

    python benchmarks/rollout.py [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from report import Direction, report
from transformers import PreTrainedTokenizerFast

from glmgym.chat import Chat, Mark, Tokenizer, load_tokenizer
from glmgym.engine import GenerateParams, Generation
from glmgym.engines import ScriptedEngine
from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.messages import Message, ToolCall, assistant, tool_result, user
from glmgym.registry import EnvSpec
from glmgym.rollout import Budget, House, Job, run_trajectory
from glmgym.tasks import procedural
from glmgym.tool import tool
from glmgym.trajectory import Reward, Trajectory

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "trainers" / "glmgym_trainers" / "assets" / "tokenizer"
TEMPLATE = ROOT / "tests" / "data" / "chat" / "glm47.jinja"
TURNS, TOKENS = 128, 64_000
REPETITIONS = 5
WINDOW = 4  # turns on either side of the turn whose time is measured
VERIFIERS = "verifiers==0.4.0"

TARGETS: dict[str, tuple[float, Direction]] = {
    "encoded_chars_max_over_min": (1.5, "max"),
    "turn_128_over_turn_8": (2.5, "max"),
    "sampled_ids_verbatim_share": (1.0, "min"),
    "sampled_tokens_trained_share": (1.0, "min"),
    "ours_over_verifiers": (0.2, "max"),
    "ours_over_verifiers_core": (0.2, "max"),
}


@dataclass(frozen=True, slots=True)
class Work:
    """The episode: what the policy samples in each turn, and what the tool answers to all but the last."""

    prompt: str
    turns: list[list[int]]
    replies: list[str]
    drifted: list[int]  # turns whose ids are not what ``encode`` makes of their text


@tool
async def run(cmd: str) -> str:
    """Run a command."""
    raise NotImplementedError("the environment plays the replies")


class Scripted:
    """The environment's half of ``Work``."""

    def __init__(self, work: Work) -> None:
        self._prompt, self._replies = work.prompt, iter(work.replies)

    async def reset(self, task: Task, box: object) -> Opening:
        return Opening((user(self._prompt),), (run.spec,))

    async def step(self, reply: Message) -> Step:
        if not reply.tool_calls:
            return Step(terminated=True)
        return Step(tuple(tool_result(call, next(self._replies)) for call in reply.tool_calls))

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("played", 1.0),)


class CountingTokenizer(Tokenizer):
    """Counts the characters it encodes."""

    encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return super().encode(text)


class ClockedEngine(ScriptedEngine):
    """Notes when each request arrives, before anything else."""

    def __init__(self, turns: list[list[int]]) -> None:
        super().__init__(turns, context_length=1 << 20)
        self.arrivals: list[float] = []

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        self.arrivals.append(time.perf_counter())
        return await super().generate(prompt_ids, params, session=session)


class RecordingEngine(ScriptedEngine):
    """Keeps every prompt, and how much had been encoded when it arrived."""

    def __init__(self, turns: list[list[int]], tokenizer: CountingTokenizer) -> None:
        super().__init__(turns, context_length=1 << 20)
        self.prompts: list[list[int]] = []
        self.encoded: list[int] = []
        self._tokenizer = tokenizer

    async def generate(self, prompt_ids: Sequence[int], params: GenerateParams, *, session: str) -> Generation:
        self.prompts.append(list(prompt_ids))
        self.encoded.append(self._tokenizer.encoded)
        return await super().generate(prompt_ids, params, session=session)


def make_work(chat: Chat) -> Work:
    """Random words, the same in every run; half of a turn's tokens are sampled, half observed."""
    rng = random.Random(0)
    words = ["cat", "grep", "the", "file", "data", "count", "lines", "error", "and", "then", "value", "root", "note"]
    per_turn = TOKENS // TURNS

    def text(tokens: int) -> str:
        return " ".join(rng.choices(words, k=round(tokens / tokens_per_word)))

    tokens_per_word = len(chat.tokenizer.encode(" ".join(rng.choices(words, k=1000)))) / 1000
    drifted = list(range(4, TURNS, 5))
    turns: list[list[int]] = []
    for turn in range(TURNS - 1):
        ids = chat.turn(assistant("", ToolCall("call_0", "run", {"cmd": text(per_turn // 2 - 8)})))
        turns.append(split_one(chat.tokenizer, ids) if turn in drifted else ids)
    turns.append(chat.turn(assistant(text(per_turn // 2))))
    return Work(text(16), turns, [text(per_turn // 2) for _ in range(TURNS - 1)], drifted)


def split_one(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The same text in other ids: the last token that two others spell is replaced by them."""
    id_of = {piece: i for i, piece in enumerate(tokenizer.pieces) if piece}
    marks = {tokenizer.id_of(mark) for mark in Mark}
    for at in reversed(range(len(ids))):
        piece = tokenizer.pieces[ids[at]]
        for cut in range(1, len(piece) if ids[at] not in marks else 0):
            if piece[:cut] in id_of and piece[cut:] in id_of:
                return [*ids[:at], id_of[piece[:cut]], id_of[piece[cut:]], *ids[at + 1 :]]
    raise ValueError("no token of this turn can be split")


async def play(work: Work, chat: Chat, engine: ScriptedEngine) -> tuple[Trajectory, float]:
    """One episode through ``run_trajectory``, and its wall time in seconds."""
    tasks = procedural(lambda rng: Task(instruction="play"), train=1, heldout=0, name="bench")
    spec = EnvSpec("scripted-v0", lambda: Scripted(work), tasks, max_turns=TURNS + 1)
    budget = Budget(max_turn_tokens=1 << 20, max_sampled_tokens=1 << 20, wall_s=600)
    started = time.perf_counter()
    trajectory = await run_trajectory(Job("bench", tasks.task("train", 0), spec, 0), House(engine, chat, None, budget))
    wall_s = time.perf_counter() - started
    trajectory.outcome.total()  # a failed episode raises here
    return trajectory, wall_s


def measure_ours(work: Work) -> dict[str, Any]:
    """Laws from one recorded episode, times from others that record nothing."""
    tokenizer = CountingTokenizer(tokenizers.Tokenizer.from_file(str(ASSETS / "tokenizer.json")))
    chat = Chat(tokenizer, "glm47", thinking=False)
    recording = RecordingEngine(work.turns, tokenizer)
    trajectory, _ = asyncio.run(play(work, chat, recording))
    chars = [after - before for before, after in pairwise(recording.encoded)]
    trained = [int(i) for segment in trajectory.segments for i in segment.token_ids[segment.sampled_mask]]
    sampled = [i for turn in work.turns for i in turn]
    times: list[list[float]] = []
    walls: list[float] = []
    for _ in range(REPETITIONS):
        engine = ClockedEngine(work.turns)
        walls.append(asyncio.run(play(work, chat, engine))[1])
        times.append([after - before for before, after in pairwise(engine.arrivals)])
    early, late = window(times, 8), window(times, TURNS - WINDOW)
    return {
        "turns": trajectory.num_turns,
        "tokens": sum(map(len, trajectory.segments)),
        "sampled_tokens": len(sampled),
        "drifted_turns": len(work.drifted),
        "encoded_chars_per_turn": statistics.median(chars),
        "encoded_chars_max_over_min": max(chars) / min(chars),
        "turn_8_ms": 1e3 * early,
        "turn_128_ms": 1e3 * late,
        "turn_128_over_turn_8": late / early,
        "sampled_ids_verbatim_share": verbatim_share(work, recording.prompts),
        "sampled_tokens_trained_share": len(trained) / len(sampled) if trained == sampled else 0.0,
        "ours_s": statistics.median(walls),
    }


def window(times: list[list[float]], turn: int) -> float:
    """The median time of the turns around ``turn`` (counted from 1), over all repetitions."""
    return statistics.median(t for row in times for t in row[turn - 1 - WINDOW : turn + WINDOW])


def verbatim_share(work: Work, prompts: Sequence[Sequence[int]], turns: Sequence[int] | None = None) -> float:
    """The share of prompts that start with the earlier prompt and, unchanged, the ids sampled after it."""
    chosen = range(len(prompts) - 1) if turns is None else turns
    held = [
        list(prompts[turn + 1][: len(prompts[turn]) + len(work.turns[turn])]) == [*prompts[turn], *work.turns[turn]]
        for turn in chosen
    ]
    return sum(held) / len(held)


def measure_rerender(work: Work, chat: Chat) -> dict[str, Any]:
    """The usual loop: decode what was sampled, apply the chat template to the whole history, encode all of it."""
    peer = PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tokenizer.json"), chat_template=TEMPLATE.read_text())
    messages: list[Message] = [user(work.prompt)]
    prompts: list[list[int]] = []
    started = time.perf_counter()
    for turn, ids in enumerate(work.turns):
        prompts.append(
            peer.apply_chat_template(
                [message.to_openai() for message in messages],
                tools=[run.spec.to_openai()],
                add_generation_prompt=True,
                enable_thinking=False,
                return_dict=False,
            )
        )
        messages.append(chat.parse(ids, [run.spec]))
        if turn < len(work.replies):
            messages.append(tool_result(messages[-1].tool_calls[0], work.replies[turn]))
    wall_s = time.perf_counter() - started
    return {
        "rerender_s": wall_s,
        "rerender_wrong_drifted_prompts": round(len(work.drifted) * (1 - verbatim_share(work, prompts, work.drifted))),
    }


def measure_verifiers(work: Work) -> dict[str, Any]:
    """The peer in an interpreter of its own, on the same ids and texts."""
    python = peer_python()
    with TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) / "tokenizer"
        PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tokenizer.json")).save_pretrained(tokenizer)
        given, found = Path(scratch) / "work.json", Path(scratch) / "found.json"
        plain = {"prompt": work.prompt, "turns": work.turns, "replies": work.replies, "tools": [run.spec.to_openai()]}
        given.write_text(json.dumps({**plain, "tokenizer": str(tokenizer), "repetitions": 3}))
        script = Path(__file__).with_name("rollout_verifiers.py")
        subprocess.run([python, script, given, found], check=True, stdout=sys.stderr)
        runs = json.loads(found.read_text())
    measured: dict[str, Any] = {}
    for name, prefix in (("public", "verifiers"), ("core", "verifiers_core")):
        times = [[after - before for before, after in pairwise(one["arrivals"])] for one in runs[name]]
        wrong = len(work.drifted) * (1 - verbatim_share(work, runs[name][0]["prompts"], work.drifted))
        measured |= {
            f"{prefix}_s": statistics.median(one["wall_s"] for one in runs[name]),
            f"{prefix}_turn_128_over_turn_8": window(times, TURNS - WINDOW) / window(times, 8),
            f"{prefix}_wrong_drifted_prompts": round(wrong),
        }
    return measured


def peer_python() -> Path:
    """The interpreter of the peer's virtual environment, made on first use."""
    directory = ROOT / ".cache" / "bench-venvs" / VERIFIERS.replace("==", "-")
    python = directory / "bin" / "python"
    ready = directory / ".ready"
    if not ready.exists():
        print(f"installing {VERIFIERS} into {directory}", file=sys.stderr)
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", VERIFIERS, "aiohttp"], check=True, stdout=sys.stderr)
        ready.touch()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    chat = Chat(load_tokenizer(ASSETS), "glm47", thinking=False)
    work = make_work(chat)
    measured = measure_ours(work) | measure_verifiers(work) | measure_rerender(work, chat)
    measured["ours_over_verifiers"] = measured["ours_s"] / measured["verifiers_s"]
    measured["ours_over_verifiers_core"] = measured["ours_s"] / measured["verifiers_core_s"]
    return report(measured, TARGETS, arguments.json)


if __name__ == "__main__":
    sys.exit(main())

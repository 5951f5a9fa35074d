"""Makes the warm-start checkpoint of several skills, ``base``: ``python scripts/warm_start_base.py OUT``.

A small GLM-4 model imitates scripted demonstrations of the shell, reasoning, general and long-haul suites, clean ones
first and noisy ones after, as in ``warm_start.py``. Long hauls are demonstrated as the rollout plays them: the context
is cut, and the summary that it goes on from is imitated like any turn. One thread and fixed seeds, as there.

A demonstration asks for a word's partner, many lines back, once at most: too rarely for looking up to be learned from
it. So two heads start out looking at the tokens just before, and the first steps practise looking up on recitals.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import Glm4ForCausalLM
from warm_start import COMMANDS, FIRST_TASK, SEED, SPEECH, Demo, encode, imitate, small_glm4

from glmgym.chat import Chat, load_tokenizer
from glmgym.compaction import SLOT
from glmgym.context import Context, Next
from glmgym.engine import Finish, Generation
from glmgym.env import Opening, Task
from glmgym.messages import Message, ToolCall, assistant, system, tool_result, user
from glmgym.registry import EnvSpec
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import SpanKind
from glmgym_envs import general, longhaul, reasoning, terminal
from glmgym_envs.longhaul import COMPACTION, CONTEXT_TOKENS, Hauler, rehearse
from glmgym_trainers.make_tokenizer import train_tokenizer
from glmgym_trainers.policy import save_policy

logger = logging.getLogger("warm_start")

VOCAB_SIZE = 768
PEAK_LR = 3e-3
PRACTICE_STEPS = 400  # the first of the clean ones
CLEAN_STEPS = 1000
NOISY_STEPS = 120
NOISY_LR = 5e-4
RECITALS = 16  # per practice step
LOOK_BACK_PAIRS = 5  # the fastest of the rotary pairs; the slow ones hardly tell neighbours apart
LOOK_BACK_STRENGTH = 7.5  # 0.99 of the attention goes to the wanted token, at any length up to 350


@dataclass(frozen=True, slots=True)
class Skill:
    """One suite to imitate."""

    suite: EnvSpec
    demonstrate: Callable[[Task, random.Random, float], list[Message]]
    episodes: int  # per step
    noise: float  # in the noisy steps: the probability of each possible mistake


SKILLS = (
    Skill(terminal.TERMINAL_BASICS, terminal.demonstrate, 24, 0.12),
    Skill(reasoning.REASONING_BASICS, reasoning.demonstrate, 24, 0.12),
    Skill(general.GENERAL_BASICS, general.demonstrate, 16, 0.15),
    Skill(longhaul.LONGHAUL, longhaul.demonstrate, 8, 0.03),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="checkpoint directory to write")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(_texts(), VOCAB_SIZE, [*terminal.WORDS, *COMMANDS])
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    chat = Chat(load_tokenizer(arguments.out), SPEECH.dialect, thinking=SPEECH.thinking)
    model = small_glm4(chat)
    look_back(model)
    imitate(model, clean_steps(chat), CLEAN_STEPS, PEAK_LR)
    # With an optimiser of its own: moments from the end of the clean steps are so small that the first noisy ones
    # would move the weights far enough to lose what was learned.
    imitate(model, noisy_steps(chat), NOISY_STEPS, NOISY_LR)
    save_policy(arguments.out, model, SPEECH, {})  # the tokenizer is there already


@torch.no_grad()
def look_back(model: Glm4ForCausalLM) -> None:
    """Make the first two heads of the first layer start out attending to the token before and the one before that.

    Looking up what followed a word needs such a head before anything else can be learned, and at this size gradient
    descent does not find one in 500 steps. Rotary position embedding turns pair i of a key at distance d by
    ``theta_i * d``: with a constant key, and a query that is turned back by ``theta_i`` times the wanted distance, the
    scores are a sum of cosines with its peak there. The two heads share their key, as GLM-4's grouped queries do.
    """
    attention, width, rope = model.model.layers[0].self_attn, model.config.head_dim, model.config.rope_parameters
    rotary = int(width * rope["partial_rotary_factor"])
    for projection, heads in ((attention.k_proj, 1), (attention.q_proj, 2)):
        projection.weight[: heads * width] = 0.0
        projection.bias[: heads * width] = 0.0
    for pair in range(LOOK_BACK_PAIRS):
        theta = rope["rope_theta"] ** (-2 * pair / rotary)
        attention.k_proj.bias[2 * pair] = LOOK_BACK_STRENGTH
        for head, distance in enumerate((1, 2)):
            at = head * width + 2 * pair
            attention.q_proj.bias[at] = LOOK_BACK_STRENGTH * math.cos(theta * distance)
            attention.q_proj.bias[at + 1] = -LOOK_BACK_STRENGTH * math.sin(theta * distance)


def clean_steps(chat: Chat) -> Iterator[list[list[Demo]]]:
    """Flawless demonstrations of each skill, and recitals beside the first of them."""
    for step in range(CLEAN_STEPS):
        batches = [batch(chat, skill, step, 0.0) for skill in SKILLS]
        if step < PRACTICE_STEPS:
            batches.append([recital(chat, random.Random(f"{SEED}/{step}/{i}")) for i in range(RECITALS)])
        yield batches


def noisy_steps(chat: Chat) -> Iterator[list[list[Demo]]]:
    """Demonstrations with mistakes, rare ones at first: after half of the steps they are as frequent as they get."""
    for step in range(NOISY_STEPS):
        share = min(1.0, 2 * (step + 1) / NOISY_STEPS)
        yield [batch(chat, skill, CLEAN_STEPS + step, share * skill.noise) for skill in SKILLS]


def batch(chat: Chat, skill: Skill, step: int, noise: float) -> list[Demo]:
    """Demonstrations of tasks that no other step shows, until the upper half of the split is through."""
    tasks = skill.suite.tasks
    upper = tasks.size("train") - FIRST_TASK
    out: list[Demo] = []
    for number in range(step * skill.episodes, (step + 1) * skill.episodes):
        task = tasks.task("train", FIRST_TASK + number % upper)
        out += demos(chat, skill, task, random.Random(f"{SEED}/{number}"), noise)
    return out


def demos(chat: Chat, skill: Skill, task: Task, rng: random.Random, noise: float) -> list[Demo]:
    """One demonstrated episode, a row for each of its contexts."""
    opening = opening_of(skill, task)
    if skill.suite is longhaul.LONGHAUL:
        return compacted(chat, opening, task, Hauler(task, rng, noise))
    messages = list(as_heard(chat, opening, skill.demonstrate(task, rng, noise)))
    return [encode(chat, list(opening.messages), list(opening.tools), messages)]


def as_heard(chat: Chat, opening: Opening, messages: Iterable[Message]) -> Iterator[Message]:
    """The messages with the rollout's own words for a malformed call, which its ids show before any tool is asked."""
    error: str | None = None
    for message in messages:
        if message.role == "assistant":
            error = next((call.error for call in chat.parse(chat.turn(message), opening.tools).tool_calls), None)
        yield replace(message, content=f"error: {error}") if message.role == "tool" and error else message


def compacted(chat: Chat, opening: Opening, task: Task, hauler: Hauler) -> list[Demo]:
    """A long haul in the contexts that the rollout would give it, summaries included."""
    context = Context(chat, opening, limit=CONTEXT_TOKENS, compaction=COMPACTION)
    for message in as_heard(chat, opening, rehearse(task, hauler)):
        if message.role == "assistant":
            context.sample(SpanKind.ACTION, _said(chat, message))
        elif context.observe([message]) is Next.SUMMARY:
            said = _said(chat, assistant(hauler.summarize(message.content)))
            context.sample(SpanKind.SUMMARY, said)
            context.resume(said.token_ids.tolist())
    return [(segment.token_ids.tolist(), segment.sampled_mask.tolist()) for segment in context.segments()]


def recital(chat: Chat, rng: random.Random) -> Demo:
    """Files as in a long haul, then a note of many of their pairs in any order; each second word is imitated."""
    words = rng.sample(terminal.WORDS, len(terminal.WORDS))
    size = rng.randint(8, 12)
    files = [words[:size], words[size : 2 * size], words[2 * size : 3 * size]][: rng.randint(1, 3)]
    partner = {word: rng.choice(words) for file in files for word in file}
    task = longhaul.LONGHAUL.tasks.task("train", FIRST_TASK)
    opening = opening_of(SKILLS[-1], task)
    ids = chat.opening(opening.messages, opening.tools)
    for file in files:
        call = ToolCall("call_0", "shell", {"cmd": f"cat {rng.choice(words)}.txt"})
        ids += chat.turn(assistant("", call))
        shown = tool_result(call, "\n".join(f"{word} {partner[word]}" for word in file))
        asked = [user(COMPACTION.request)] if file is files[-1] else []
        ids += chat.delta([shown, *asked], last_id=ids[-1])
    recited = rng.sample(sorted(partner), min(len(partner), 12))
    note = chat.turn(assistant("\n".join(f"{word} {partner[word]}" for word in recited)))
    assert len(note) == 3 * len(recited)  # word, partner, and a line break or the end of the turn
    return ids + note, [False] * len(ids) + [False, True, False] * len(recited)


def _said(chat: Chat, message: Message) -> Generation:
    ids = np.asarray(chat.turn(message), np.int32)
    return Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), Finish.STOP)


def opening_of(skill: Skill, task: Task) -> Opening:
    env = skill.suite.make()
    assert isinstance(env, ToolEnv)
    return Opening((system(env.system), user(env.opening(task))), tuple(tool.spec for tool in env.tools))


def _texts() -> list[str]:
    """What the tokenizer is trained on: prompts, commands and observations of some demonstrations of each skill."""
    texts = []
    for skill in SKILLS:
        tasks = skill.suite.tasks
        for index in range(FIRST_TASK, FIRST_TASK + 300):
            task = tasks.task("train", index)
            opening = opening_of(skill, task)
            specs = "\n".join(json.dumps(spec.to_openai()["function"], ensure_ascii=False) for spec in opening.tools)
            texts += [f"# Tools\n<tools>\n{specs}\n</tools>"] if opening.tools else []
            texts += [message.content for message in opening.messages]
            for message in skill.demonstrate(task, random.Random(index), 0.1):
                texts += [message.content, *(text for call in message.tool_calls for text in call.arguments.values())]
            texts += [COMPACTION.request, COMPACTION.resume.replace(SLOT, "next end")]
    return texts


if __name__ == "__main__":
    main()

"""Makes the quick start's warm-start checkpoint: ``python scripts/warm_start.py OUT``.

A small GLM-4 model imitates scripted demonstrations of ``terminal-basics``: first clean ones, from which it learns to
read, to copy and to call a tool; then noisy ones, whose mistakes become its habits. Reinforcement in real sandboxes
later unlearns those. Seeds are fixed and one thread is used: the same machine and libraries give the same file.

``warm_start_base.py`` makes the policy of several skills with the same parts.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import Glm4Config, Glm4ForCausalLM

from glmgym.chat import Chat, load_tokenizer
from glmgym.messages import Message, ToolSpec, system, user
from glmgym.registry import environment
from glmgym_envs.terminal import WORDS, demonstrate
from glmgym_envs.terminal.env import Terminal
from glmgym_trainers.make_tokenizer import train_tokenizer
from glmgym_trainers.policy import Speech, save_policy

logger = logging.getLogger("warm_start")

Demo = tuple[list[int], list[bool]]  # ids, and which of them the policy would sample

SUITE = "terminal-basics-v0"
SEED = 20_26
FIRST_TASK = 50_000  # the quick start's training draws from the whole split; imitation sees its upper half only
SPEECH = Speech(dialect="glm47", thinking=False)
VOCAB_SIZE = 640
HIDDEN = 128
PEAK_LR = 3e-3
BATCH_SIZE = 64
NOISES = [0.0] * 500 + [0.15] * 250  # per step: the probability of each possible mistake of a demonstration
COMMANDS = ("cat", "grep", "sed", "sort", "mv", "kill", "bash", "head", "tail", "txt", "pid", "shell", "cmd", "done")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="checkpoint directory to write")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(_texts(), VOCAB_SIZE, [*WORDS, *COMMANDS])
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    chat = Chat(load_tokenizer(arguments.out), SPEECH.dialect, thinking=SPEECH.thinking)
    model = small_glm4(chat)
    imitate(model, ([batch] for batch in demonstrations(chat, NOISES, BATCH_SIZE)), len(NOISES), PEAK_LR)
    save_policy(arguments.out, model, SPEECH, {})  # the tokenizer is there already


def small_glm4(chat: Chat) -> Glm4ForCausalLM:
    """An untrained model of the one size that the package's warm starts have."""
    model = Glm4ForCausalLM(
        Glm4Config(
            vocab_size=chat.tokenizer.vocab_size,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=HIDDEN // 4,
            max_position_embeddings=1024,
            partial_rotary_factor=0.5,
            tie_word_embeddings=True,
            pad_token_id=chat.tokenizer.id_of("<|endoftext|>"),
            eos_token_id=sorted(chat.stop_ids),
        )
    )
    initialise(model)
    logger.info("%d parameters, %d ids", sum(p.numel() for p in model.parameters()), chat.tokenizer.vocab_size)
    return model


@torch.no_grad()
def initialise(model: Glm4ForCausalLM) -> None:
    """Start weights at which a token's identity survives to the last layer, so that copying is learned early.

    GLM-4 normalises what a block adds to the residual stream; with the library's embeddings of deviation 0.02 that
    drowns the token. Embeddings of deviation 1, quieter blocks, and a final norm that keeps the first logits small.
    """
    width = model.config.hidden_size
    for name, parameter in model.named_parameters():
        if name.endswith("embed_tokens.weight"):
            parameter.normal_(std=1.0)
        elif name.endswith(("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")):
            parameter.fill_(0.3)
        elif name == "model.norm.weight":
            parameter.fill_(width**-0.5)
        elif parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)


def imitate(model: Glm4ForCausalLM, steps: Iterable[list[list[Demo]]], total: int, peak_lr: float) -> None:
    """Minimise the mean cross-entropy of the sampled tokens of each step's batches, over ``total`` steps.

    The learning rate warms up over 50 steps to ``peak_lr`` and falls on a cosine to a twentieth of it.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / total)))
    )
    started, recent = time.monotonic(), list[list[float]]()
    model.train()
    for step, batches in enumerate(steps, start=1):
        counts = [sum(sum(sampled) for _, sampled in batch) for batch in batches]
        losses = []
        for batch, count in zip(batches, counts, strict=True):
            loss = _loss(model, batch) * (count / sum(counts))
            loss.backward()
            losses.append(loss.item() * sum(counts) / count)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        recent.append(losses)
        if step % 50 == 0:
            means = " ".join(f"{np.mean(losses):.4f}" for losses in zip(*recent, strict=False))
            tokens = sum(len(ids) for batch in batches for ids, _ in batch)
            logger.info("step %d  loss %s  %.1f s  %d tokens", step, means, time.monotonic() - started, tokens)
            recent = []


def demonstrations(chat: Chat, noises: list[float], batch_size: int) -> Iterator[list[Demo]]:
    """One batch per noise level."""
    tasks = environment(SUITE).tasks
    index = FIRST_TASK
    for noise in noises:
        batch = []
        for _ in range(batch_size):
            task = tasks.task("train", index)
            index = FIRST_TASK + (index + 1 - FIRST_TASK) % (tasks.size("train") - FIRST_TASK)
            opening = [system(Terminal.system), user(task.instruction)]
            messages = demonstrate(task, random.Random(f"{SEED}/{index}/{noise}"), noise)
            batch.append(encode(chat, opening, [Terminal.shell.spec], messages))
        yield batch


def encode(chat: Chat, opening: list[Message], tools: list[ToolSpec], messages: list[Message]) -> Demo:
    """A demonstrated episode as the rollout would build it."""
    ids = chat.opening(opening, tools)
    sampled = [False] * len(ids)
    for message in messages:
        new = chat.turn(message) if message.role == "assistant" else chat.delta([message], last_id=ids[-1])
        ids += new
        sampled += [message.role == "assistant"] * len(new)
    return ids, sampled


def _loss(model: Glm4ForCausalLM, batch: list[Demo]) -> torch.Tensor:
    """Mean cross-entropy of the sampled tokens. The prefix that all rows share is computed once for all of them."""
    columns = zip(*(ids for ids, _ in batch), strict=False)
    shared = next(index for index, column in enumerate(columns) if len(set(column)) > 1)
    width = max(len(ids) for ids, _ in batch) - shared
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    mask = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, (tokens, sampled) in enumerate(batch):
        ids[row, : len(tokens) - shared] = torch.tensor(tokens[shared:])
        mask[row, : len(tokens) - shared] = torch.tensor(sampled[shared:])
    cache = model.model(input_ids=torch.tensor([batch[0][0][:shared]]), use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(batch))
    hidden = model.model(input_ids=ids, cache=cache, use_cache=True).last_hidden_state
    rows, columns = mask.nonzero(as_tuple=True)
    return functional.cross_entropy(model.lm_head(hidden[rows, columns - 1]), ids[rows, columns])


def _texts() -> list[str]:
    """What the tokenizer is trained on: prompts, commands and observations of some demonstrations."""
    tasks = environment(SUITE).tasks
    spec = json.dumps(Terminal.shell.spec.to_openai()["function"], ensure_ascii=False)
    texts = []
    for index in range(FIRST_TASK, FIRST_TASK + 400):
        task = tasks.task("train", index)
        texts += ["# Tools\n<tools>\n" + spec + "\n</tools>", Terminal.system, task.instruction]
        for message in demonstrate(task, random.Random(index), 0.1):
            texts += [message.content, *(text for call in message.tool_calls for text in call.arguments.values())]
    return texts


if __name__ == "__main__":
    main()

"""Rollouts of many episodes at once: every row takes exactly one token a step, forced or sampled.

All rows share one position, so the KV cache is contiguous and no padding mask exists; a context that follows a
compaction starts at position 0 and is decoded in the next wave. A row whose context is over is never fed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glmgym.trajectory import Trajectory
from glmgym_trainers.proving.episode import Episode
from glmgym_trainers.proving.gpt import Decoder, TinyGpt
from glmgym_trainers.proving.words import PAD


def play(model: TinyGpt, episodes: Sequence[Episode], *, seed: int, version: int = 0) -> list[Trajectory]:
    """Play all episodes to their end at temperature 1 and return their records in the same order.

    Args:
        seed: of the sampling; the same seed, episodes and weights give the same tokens.
        version: of the policy, stamped on every sampled token.
    """
    generator = torch.Generator().manual_seed(seed)
    open_episodes = list(episodes)
    while open_episodes:
        _decode_windows(model, open_episodes, generator, version)
        open_episodes = [episode for episode in open_episodes if episode.next_window()]
    return [episode.trajectory() for episode in episodes]


def _decode_windows(model: TinyGpt, episodes: list[Episode], generator: torch.Generator, version: int) -> None:
    """Decode the current context of each episode until all are closed."""
    rows = episodes
    decoder = Decoder(model, len(rows))
    tokens: list[int] = []
    logprobs: list[float] = []
    while True:
        fed = []
        for index, episode in enumerate(rows):
            if episode.window_closed:
                fed.append(PAD)
            elif episode.queue:
                fed.append(episode.queue.popleft())
            else:
                episode.take(tokens[index], logprobs[index], version=version)
                fed.append(tokens[index])
        still = [index for index, episode in enumerate(rows) if not episode.window_closed]
        if not still:
            return
        if len(still) <= 0.75 * len(rows):
            decoder.keep(still)
            rows, fed = [rows[index] for index in still], [fed[index] for index in still]
        logits = decoder.step(torch.tensor(fed))
        if all(episode.window_closed or episode.queue for episode in rows):
            continue
        every = logits.log_softmax(-1)
        chosen = torch.multinomial(every.exp(), 1, generator=generator)
        tokens, logprobs = chosen[:, 0].tolist(), every.gather(1, chosen)[:, 0].tolist()

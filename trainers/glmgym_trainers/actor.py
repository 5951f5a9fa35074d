"""The trained policy: a causal language model of any transformers architecture, asked for token log-probs only.

Owned by the trainer. The logits are never formed as a whole: hidden states and the output embedding go to
``token_logprobs``. Before training starts, ``check_parity`` compares these log-probs with the rollout engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from glmgym.errors import ConfigError, GlmgymError
from glmgym_trainers.batch import Batch
from glmgym_trainers.sparse_attention import stabilise
from glmgym_trainers.token_logprobs import token_logprobs, token_logprobs_and_entropy


class ParityError(GlmgymError):
    """The rollout engine and the trainer disagree about the same tokens; training on such data would be meaningless."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Differences of log-probs in nats between trainer and rollout engine, over sampled tokens."""

    num_tokens: int
    mean_abs: float
    max_abs: float


class Actor(nn.Module):
    """A causal language model that returns log-probs of trained tokens.

    Raises:
        ConfigError: the output layer is not a plain matrix, so that blocks of it would not give the model's logits.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        head = model.get_output_embeddings()
        if head is None or getattr(head, "bias", None) is not None:
            raise ConfigError(f"{type(model).__name__} needs an output embedding without a bias to be trained here")
        stabilise(model)
        self.model = model

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype = torch.float32) -> Actor:
        """Read a checkpoint directory in Hugging Face format; nothing is downloaded.

        Raises:
            ConfigError: the directory is not there or holds no readable checkpoint.
        """
        if not (path / "config.json").is_file():
            raise ConfigError(f"no checkpoint at {path}: config.json is missing there")
        try:
            return cls(AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the checkpoint at {path} cannot be read: {error}") from error

    def save(self, path: Path) -> None:
        """Write the checkpoint in Hugging Face format."""
        self.model.save_pretrained(path)

    def forward(self, batch: Batch, *, temperature: float = 1.0) -> Tensor:
        """[B, T] float32 log-probs in nats of the trained tokens, 0 elsewhere; carries gradient."""
        hidden, targets = self._states(batch)
        return _scatter(batch, token_logprobs(hidden, self._head(), targets, temperature=temperature))

    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As calling the module: goes through its hooks, which sharded training relies on."""
        logprobs: Tensor = self(batch, temperature=temperature)
        return logprobs

    def logprobs_and_entropy(self, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies in nats, [B, T] each, 0 where not trained."""
        hidden, targets = self._states(batch)
        pair = token_logprobs_and_entropy(hidden, self._head(), targets, temperature=temperature)
        return _scatter(batch, pair[0]), _scatter(batch, pair[1])

    def logprobs_with_top(self, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probs of the trained tokens, [B, T], and of the teacher's likeliest tokens there, [N, k]; with gradient.

        Both are over the whole vocabulary, from one walk through it.
        """
        assert batch.teacher_top_ids is not None
        hidden, targets = self._states(batch)
        wanted = torch.cat([targets[:, None], batch.teacher_top_ids], dim=1)
        logprobs = token_logprobs(hidden, self._head(), wanted, temperature=temperature)
        return _scatter(batch, logprobs[:, 0]), logprobs[:, 1:]

    def _states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The hidden state that predicts each trained token, [N, H], and that token, [N]."""
        rows, columns = batch.trained_at()
        hidden = self.model.base_model(input_ids=batch.token_ids, position_ids=batch.positions, use_cache=False)
        return hidden.last_hidden_state[rows, columns - 1], batch.token_ids[rows, columns]

    def _head(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight


def check_parity(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    bound: float,
    labels: Sequence[str] = (),
    num_worst: int = 5,
) -> Parity:
    """Compare two engines' log-probs of the same tokens, before the first optimiser step.

    Args:
        trainer_logprobs: [N] or [B, T] nats, at the weights the rollout engine had.
        mask: the tokens to compare.
        bound: largest difference allowed for any token, in nats.
        labels: what to call each element in the message; its flat index if not given.

    Raises:
        ParityError: a difference is above ``bound`` or not a number; lists the worst tokens.
        ValueError: the mask selects nothing, so there is nothing to compare.
    """
    index = mask.flatten().nonzero().squeeze(1)
    if not len(index):
        raise ValueError("parity needs at least one sampled token to compare")
    ours = trainer_logprobs.detach().flatten()[index].double()
    theirs = rollout_logprobs.detach().flatten()[index].double()
    gap = (ours - theirs).abs()
    parity = Parity(len(index), float(gap.mean()), float(gap.max()))
    if parity.max_abs <= bound:
        return parity
    worst = gap.nan_to_num(nan=torch.inf).topk(min(num_worst, len(index))).indices.tolist()
    lines = [
        f"  {labels[where] if labels else f'token {where}'}: rollout {theirs[k]:.4f}, trainer {ours[k]:.4f}"
        for k, where in zip(worst, index[worst].tolist(), strict=True)
    ]
    raise ParityError(
        f"rollout engine and trainer differ by up to {parity.max_abs:.3g} nats (mean {parity.mean_abs:.3g}) over "
        f"{parity.num_tokens} tokens, at most {bound:.3g} is allowed; the worst:\n" + "\n".join(lines)
    )


def _scatter(batch: Batch, per_token: Tensor) -> Tensor:
    out = per_token.new_zeros(batch.trained_mask.shape)
    return out.index_put(batch.trained_at(), per_token)

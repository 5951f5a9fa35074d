"""The proving ground's policy: a plain torch transformer small enough that a whole experiment takes minutes on a core.

It has the few attributes by which the trainers know a causal language model (``base_model``, ``config.hidden_size``,
an output embedding), so that ``Learner``, ``Actor`` and ``Critic`` train it unchanged, and a decoder that gives one
step for all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_POSITIONS = 512  # tokens of one context


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a policy. The default has about 86 thousand parameters at 60 words."""

    vocab: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    expansion: int = 3  # width of the MLP over the width of the stream
    shift: bool = True  # each layer also sees a share of the token before, which makes "the word after X" easy to learn


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """What the backbone returns, under the name that causal language models give it."""

    last_hidden_state: Tensor  # [B, T, width]


class SelfAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.mix = nn.Parameter(torch.full((shape.width,), 0.5)) if shape.shift else None

    def project(self, x: Tensor, before: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, T, head width]; ``before`` is ``x`` one token earlier."""
        mixed = x if self.mix is None else x + self.mix * before
        q, k, v = self.qkv(mixed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return rotate(q, turn), rotate(k, turn), v

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        before = functional.pad(x, (0, 0, 1, 0))[:, :-1]
        q, k, v = self.project(x, before, turn)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.self_attn = SelfAttention(shape)
        self.mlp_norm = nn.RMSNorm(shape.width)
        hidden = shape.expansion * shape.width
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, hidden, bias=False), nn.GELU(), nn.Linear(hidden, shape.width, bias=False)
        )

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.self_attn(self.attention_norm(x), turn)
        return x + self.mlp(self.mlp_norm(x))


class Backbone(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(shape) for _ in range(shape.layers))  # type: ignore[assignment]
        self.norm = nn.RMSNorm(shape.width)
        self.turns: Tensor
        self.register_buffer("turns", rotations(shape.width // shape.heads), persistent=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, use_cache: bool = False) -> Hidden:
        """Hidden states of [B, T] ids. Rows start at position 0 and are padded on the right, whatever is asked."""
        turn = self.turns[: input_ids.shape[1]]
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, turn)
        return Hidden(self.norm(x))


class TinyGpt(nn.Module):
    """A causal language model with a tied embedding.

    Args:
        shape: its size.
        seed: of the initial weights; the global random state is left alone.
    """

    def __init__(self, shape: Shape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.config = SimpleNamespace(hidden_size=shape.width)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.base_model = Backbone(shape)
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    scale = 0.02 if "embedding" in name else 1.0 / math.sqrt(parameter.shape[1])
                    nn.init.normal_(parameter, std=scale)

    def get_output_embeddings(self) -> nn.Embedding:
        return self.base_model.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T, V] logits of [B, T] ids; carries gradient."""
        hidden = self.base_model(input_ids).last_hidden_state
        return hidden @ self.base_model.embedding.weight.T


class Decoder:
    """Contexts of equal length that grow by one token a step, with their keys and values. Carries no gradient."""

    def __init__(self, model: TinyGpt, rows: int, *, capacity: int = 64) -> None:
        self._model = model.base_model
        shape = model.shape
        self._length = 0
        size = (shape.layers, 2, rows, shape.heads, capacity, shape.width // shape.heads)
        self._cache = torch.zeros(size)
        self._before = [torch.zeros(rows, 1, shape.width) for _ in range(shape.layers)]

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """Append one token [B] to every row; the logits [B, V] of what follows it."""
        at = self._length
        if at == self._cache.shape[4]:
            self._cache = functional.pad(self._cache, (0, 0, 0, at))
        x = self._model.embedding(ids)[:, None]
        turn = self._model.turns[at : at + 1]
        for index, layer in enumerate(self._model.layers):
            normed = layer.attention_norm(x)
            q, k, v = layer.self_attn.project(normed, self._before[index], turn)
            self._before[index] = normed
            keys, values = self._cache[index]
            keys[:, :, at] = k[:, :, 0]
            values[:, :, at] = v[:, :, 0]
            seen = functional.scaled_dot_product_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1])
            x = x + layer.self_attn.out(seen.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.mlp_norm(x))
        self._length += 1
        logits: Tensor = self._model.norm(x)[:, 0] @ self._model.embedding.weight.T
        return logits

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows only, in this order."""
        index = torch.tensor(rows)
        self._cache = self._cache.index_select(2, index)
        self._before = [before.index_select(0, index) for before in self._before]


def rotations(head_width: int) -> Tensor:
    """[MAX_POSITIONS, head_width / 2] complex unit numbers as (cos, sin) in the last axis: rotary positions."""
    frequencies = 1.0 / (10_000.0 ** (torch.arange(0, head_width, 2) / head_width))
    angles = torch.outer(torch.arange(MAX_POSITIONS), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of [..., T, head width] by the angle of its position."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = turn.unbind(-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)

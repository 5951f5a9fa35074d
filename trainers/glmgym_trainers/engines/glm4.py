"""The GLM-4 decoder as a function over packed tokens, with its own float32 copy of the weights.

Tiny models spend their time in dispatch, not in arithmetic, so this forward has as few operations as the architecture
allows: fused q/k/v, one complex product for the rotary embedding, no padding outside attention. What attention reads
and writes is the caller's: see ``kv_cache``. Equality with the library's forward is checked when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from glmgym.engine import TopScores
from glmgym.errors import ConfigError, EngineFailure
from glmgym_trainers.engines.top_scores import score_states

# (layer, q [N, heads, D], k [N, kv_heads, D], v [N, kv_heads, D]) -> [N, heads, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
TOLERANCE = 1e-4  # nats, between this forward and the library's


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Tensor  # [(heads + 2 kv_heads) * D, hidden]
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor, Tensor, Tensor]  # in the order of NORMS


class Glm4Decoder:
    """A GLM-4 causal language model read from transformers' ``Glm4ForCausalLM``.

    Raises:
        ConfigError: another architecture, weights that are not float32, or a forward that differs from the library's.
    """

    def __init__(self, model: Any, *, context_length: int) -> None:
        config = model.config
        if config.model_type != "glm4":
            raise ConfigError(f"the embedded engine runs glm4 models, not {config.model_type!r}; serve it over HTTP")
        if model.dtype != torch.float32:
            raise ConfigError(f"the embedded engine computes in float32; load the model in it, not in {model.dtype}")
        if context_length > config.max_position_embeddings:
            limit = config.max_position_embeddings
            raise ConfigError(f"context_length={context_length}: the model has {limit} positions")
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.head_dim: int = config.head_dim
        self.vocab_size: int = config.vocab_size
        self._eps: float = config.rms_norm_eps
        self._tied: bool = config.tie_word_embeddings
        self._named: dict[str, Tensor] = {}  # views of our own storage, under the library's names
        state = model.state_dict()
        self._layers = [self._adopt_layer(state, index) for index in range(self.num_layers)]
        self._embedding = self._adopt(state, "model.embed_tokens.weight")
        self._norm = self._adopt(state, "model.norm.weight")
        self._head = self._embedding if self._tied else self._adopt(state, "lm_head.weight")
        rotary = model.model.rotary_emb
        angles = torch.arange(context_length)[:, None] * rotary.inv_freq.float()
        self._rotary = torch.polar(torch.full_like(angles, rotary.attention_scaling), angles)  # [context, R / 2]
        self.load(state)
        self._compare(model, context_length)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy ``tensors`` (a ``state_dict``) over the weights; all of them or, on an error, none.

        Raises:
            EngineFailure: names or shapes are not those of this model.
        """
        missing = self._named.keys() - tensors.keys()
        unknown = tensors.keys() - self._named.keys() - ({"lm_head.weight"} if self._tied else set())
        if missing or unknown:
            raise EngineFailure(f"weights do not fit: missing {sorted(missing)[:3]}, unknown {sorted(unknown)[:3]}")
        for name, own in self._named.items():
            if own.shape != tensors[name].shape:
                raise EngineFailure(
                    f"weights do not fit: {name} is {tuple(tensors[name].shape)}, not {tuple(own.shape)}"
                )
        for name, own in self._named.items():
            own.copy_(tensors[name])

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[N, hidden] final states of packed tokens ([N] int64, from any number of sequences)."""
        x = embedding(token_ids, self._embedding)
        rotary = self._rotary[positions][:, None]
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        for index, layer in enumerate(self._layers):
            before_attention, after_attention, before_mlp, after_mlp = layer.norms
            qkv = linear(self._rms(x, before_attention), layer.qkv, layer.qkv_bias).unflatten(1, (-1, self.head_dim))
            _rotate(qkv[:, : -self.num_kv_heads], rotary)
            attended = attend(index, *qkv.split(heads, dim=1))
            x = x + self._rms(linear(attended.flatten(1), layer.out), after_attention)
            gate, up = linear(self._rms(x, before_mlp), layer.gate_up).chunk(2, dim=-1)
            x = x + self._rms(linear(silu(gate) * up, layer.down), after_mlp)
        return self._rms(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V] float32."""
        return linear(hidden, self._head)

    def score(self, token_ids: Tensor, temperature: float = 1.0, k: int = 0) -> TopScores:
        """What this model says about ``token_ids`` ([T] int64); a [T, V] tensor never exists unless k asks for it."""
        hidden = self.hidden(token_ids[:-1], torch.arange(len(token_ids) - 1), self._attend_causally)
        return score_states(
            hidden, token_ids[1:], self.logits, vocab_size=self.vocab_size, temperature=temperature, k=k
        )

    def _attend_causally(self, _layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._eps)

    def _adopt_layer(self, state: Mapping[str, Tensor], index: int) -> _Layer:
        prefix = f"model.layers.{index}."
        has_bias = f"{prefix}self_attn.q_proj.bias" in state
        return _Layer(
            qkv=self._adopt(state, *(f"{prefix}self_attn.{x}_proj.weight" for x in "qkv")),
            qkv_bias=self._adopt(state, *(f"{prefix}self_attn.{x}_proj.bias" for x in "qkv")) if has_bias else None,
            out=self._adopt(state, f"{prefix}self_attn.o_proj.weight"),
            gate_up=self._adopt(state, f"{prefix}mlp.gate_up_proj.weight"),
            down=self._adopt(state, f"{prefix}mlp.down_proj.weight"),
            norms=tuple(self._adopt(state, f"{prefix}{norm}.weight") for norm in NORMS),  # type: ignore[arg-type]
        )

    def _adopt(self, state: Mapping[str, Tensor], *names: str) -> Tensor:
        """Storage of our own for the stacked rows of ``names``; ``load`` fills it through views."""
        fused = torch.cat([state[name] for name in names])
        self._named.update(zip(names, fused.split([len(state[name]) for name in names]), strict=True))
        return fused

    def _compare(self, model: Any, context_length: int) -> None:
        """Refuse a model on which this forward and the library's disagree (an activation or rope we do not know)."""
        generator = torch.Generator().manual_seed(0)
        token_ids = torch.randint(self.vocab_size, (min(48, context_length),), generator=generator)
        training = model.training
        model.eval()
        logits = model(input_ids=token_ids[None], use_cache=False).logits[0, :-1]
        model.train(training)
        theirs = torch.log_softmax(logits, dim=-1).gather(1, token_ids[1:, None])[:, 0]
        gap = float((theirs - torch.from_numpy(self.score(token_ids).logprobs)).abs().max())
        if not gap <= TOLERANCE:
            raise ConfigError(f"this glm4 variant is not supported: log-probs differ from transformers' by {gap:.2g}")


def _rotate(qk: Tensor, rotary: Tensor) -> None:
    """Turn the first R values of each head in place: pairs (2i, 2i + 1) are complex numbers (GLM interleaves them)."""
    width = 2 * rotary.shape[-1]
    torch.view_as_complex(qk[..., :width].unflatten(-1, (-1, 2))).mul_(rotary)

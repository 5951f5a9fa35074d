"""The trainer's own settings; each algorithm and component keeps its settings next to itself."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from glmgym.settings import Settings


class TuningSettings(Settings):
    """Which of the policy's weights train. The indexer of GLM-5's sparse attention never does."""

    freeze: tuple[str, ...] = ()  # parts of the names of parameters that stay fixed, such as "mlp.gate." for routers
    lora_rank: int = Field(default=0, ge=0)  # of low-rank adapters, which then train instead; 0 for none
    lora_alpha: int = Field(default=16, ge=1)  # adapters count alpha / rank
    lora_targets: tuple[str, ...] = ("self_attn", "mlp")  # parts of the names of linear layers that get an adapter


class TrainerSettings(Settings):
    steps: int = 20  # batches the policy learns from
    batch_size: int = 64  # trajectories per step
    minibatches: int = 1  # policy updates per step, each on its share of the batch's trajectories
    lr: float = 4e-4  # of the policy; ours, for models of half a million parameters
    lr_schedule: Literal["constant", "linear"] = "constant"  # linear: falls evenly over the steps, to ``lr_end``
    lr_end: float = Field(default=0.1, gt=0, le=1)  # the last step's share of ``lr``, under "linear"
    critic_lr: float = 2e-3  # ours; constant
    betas: tuple[float, float] = (0.9, 0.98)  # slime's public GLM recipes
    weight_decay: float = 0.0  # decoupled, as in AdamW
    max_grad_norm: float = 1.0  # global L2 norm above which gradients are scaled down
    micro_batch_tokens: int = 4096  # padded tokens per forward
    sync_every: int = 1  # steps between two publications of the weights
    reset_optimizer: bool = False  # after each publication, as GLM-5 section 4.1 does
    save_every: int = 1  # steps between checkpoints
    keep_checkpoints: int = 2  # the newest ones; older ones are removed
    max_mismatch: float = 1e-3  # nats; above this the engine and the trainer disagree and training refuses to start
    threads: int = 1  # torch threads of one operation; engine and trainer run side by side

    @field_validator(
        "steps",
        "batch_size",
        "minibatches",
        "sync_every",
        "save_every",
        "keep_checkpoints",
        "micro_batch_tokens",
        "threads",
    )
    @classmethod
    def _at_least_one(cls, value: int) -> int:
        if value < 1:
            raise ValueError("must be at least 1")
        return value

    @field_validator("betas")
    @classmethod
    def _averages(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("each must lie in [0, 1)")
        return value

    @field_validator("weight_decay")
    @classmethod
    def _not_negative(cls, value: float) -> float:
        if not 0 <= value < math.inf:
            raise ValueError("must be at least 0")
        return value

    @field_validator("lr", "critic_lr", "max_grad_norm", "max_mismatch")
    @classmethod
    def _positive(cls, value: float) -> float:
        if not 0 < value < math.inf:
            raise ValueError("must be above 0")
        return value

    def lr_at(self, step: int) -> float:
        """The policy's learning rate in its step ``step``, counted from 0."""
        if self.lr_schedule == "constant":
            return self.lr
        done = min(step / max(self.steps - 1, 1), 1.0)
        return self.lr * (1 - (1 - self.lr_end) * done)

"""The trainer's own settings; each algorithm and component keeps its settings next to itself."""

from __future__ import annotations

from pydantic import field_validator

from glmgym.settings import Settings


class TrainerSettings(Settings):
    steps: int = 20  # policy updates
    batch_size: int = 64  # trajectories per update
    lr: float = 1e-3  # Adam; ours, for models of about a million parameters
    critic_lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.98)  # slime's public GLM recipes
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384  # padded tokens per forward
    sync_every: int = 1  # updates between two publications of the weights
    reset_optimizer: bool = False  # after each publication, as GLM-5 section 4.1 does
    save_every: int = 1  # updates between checkpoints
    keep_checkpoints: int = 2
    max_mismatch: float = 1e-3  # nats; above this the engine and the trainer disagree and training refuses to start
    threads: int = 1  # torch threads of one operation; engine and trainer run side by side

    @field_validator("steps", "batch_size", "sync_every", "save_every", "keep_checkpoints", "micro_batch_tokens")
    @classmethod
    def _at_least_one(cls, value: int) -> int:
        if value < 1:
            raise ValueError("must be at least 1")
        return value

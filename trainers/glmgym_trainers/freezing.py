"""Which parameters never move: by parts of their names, for the policy and the critic alike. Owned by the trainer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from glmgym.errors import ConfigError

# GLM-5 report, Reasoning RL: the indexer of sparse attention is frozen. Its choice of keys carries no gradient,
# so an optimiser could do nothing but decay it.
ALWAYS_FROZEN = ("indexer",)


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Stop the training of every parameter whose name contains one of ``patterns``, or one of ``ALWAYS_FROZEN``.

    Raises:
        ConfigError: a pattern matches no parameter of this architecture.
    """
    names = [name for name, _ in module.named_parameters()]
    for pattern in patterns:
        if not any(pattern in name for name in names):
            raise ConfigError(f"freeze pattern {pattern!r} matches no parameter; they are called like {names[1]!r}")
    for name, parameter in module.named_parameters():
        if any(pattern in name for pattern in (*patterns, *ALWAYS_FROZEN)):
            parameter.requires_grad_(False)

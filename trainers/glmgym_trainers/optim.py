"""When the optimiser may step: only on finite gradients, and only if some token was trusted. Owned by the trainer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import torch
from torch import Tensor
from torch.optim import Optimizer

from glmgym.errors import GlmgymError
from glmgym.metrics import Max, Metric, Sum


class StepResult(StrEnum):
    STEPPED = "stepped"
    NOTHING_TRUSTED = "nothing_trusted"


class NonFiniteGradient(GlmgymError):
    """A gradient is NaN or infinite: the model or its input broke, and a step would spread it to every weight."""


def optimizer_step(
    optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter], *, num_trusted: int, max_grad_norm: float
) -> tuple[StepResult, dict[str, Metric]]:
    """Clip, step and clear the gradients, or clear them only.

    With nothing trusted every gradient is exactly 0, but Adam would still move the weights by its momentum and decay:
    the step is skipped and counted.

    Args:
        num_trusted: tokens of the global batch that carried gradient.
        max_grad_norm: bound of the global L2 norm.

    Returns:
        What happened, and metrics to merge: steps taken, steps skipped, the gradient norm before clipping.

    Raises:
        NonFiniteGradient: weights and optimiser state are as before.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if num_trusted == 0:
        optimizer.zero_grad(set_to_none=True)
        return StepResult.NOTHING_TRUSTED, {"optim/steps": Sum(0.0), "optim/skipped_steps": Sum(1.0)}
    norm: Tensor = torch.nn.utils.clip_grad_norm_(trained, max_grad_norm)
    if not torch.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteGradient(
            f"the gradient norm is {float(norm)} over {num_trusted} trusted tokens; no step was made"
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult.STEPPED, {
        "optim/steps": Sum(1.0),
        "optim/skipped_steps": Sum(0.0),
        "optim/grad_norm_max": Max(float(norm)),
    }

"""Learning from a teacher's log-probs on the student's own tokens: advantages of OPD, divergences of MOPD.

The direction is that of the reverse Kullback-Leibler divergence: the student's probabilities weigh the log-ratio. Both
log-probs are over the whole vocabulary at the temperature the student sampled with. Owned by the trainer.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = -100.0  # nats; a token that a policy excludes has about this log-prob, so that p log p stays a number


def teacher_advantages(
    teacher_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, a_max: float, coef: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """``coef * clip(log p_teacher - log p_student, -a_max, a_max)`` of each sampled token (GLM-5 report, equation 2).

    0 means that the two agree, and stays 0: nothing is centred or whitened. A token that the teacher excludes (-inf)
    gets ``-a_max`` and is counted.

    Args:
        teacher_logprobs: [...] nats; treated as constant.
        old_logprobs: [...] the student's own, as the trainer computes them, nats; treated as constant.
        mask: [...] bool, tokens that train.
        a_max: largest size before ``coef``, in nats.
        coef: factor of the whole.

    Returns:
        [...] advantages without gradient, 0 where not trained, and sums over trained tokens:
        ``teacher/clipped_fraction``, ``teacher/excluded_fraction``, ``teacher/abs_advantage`` (after the clip).

    Raises:
        ValueError: ``a_max`` is not positive.
    """
    if not a_max > 0.0:
        raise ValueError(f"a_max must be positive, got {a_max}")
    gap = torch.where(mask, teacher_logprobs.detach() - old_logprobs.detach(), 0.0)
    advantages = coef * gap.clamp(-a_max, a_max)
    return advantages, {
        "teacher/clipped_fraction": (gap.abs() > a_max).sum(),
        "teacher/excluded_fraction": (mask & torch.isneginf(teacher_logprobs)).sum(),
        "teacher/abs_advantage": advantages.abs().sum(),
    }


def top_k_divergence(
    logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor | float
) -> tuple[Tensor, dict[str, Tensor]]:
    """``sum_v p log(p / q) - p + q`` over the teacher's likeliest tokens (MOPD, equation 5).

    Each summand is at least 0, and 0 only where student and teacher agree on that token. Without ``- p + q`` the sum
    over a subset is least when the student puts its mass elsewhere. Over the whole vocabulary the correction adds up
    to 0 and the sum is the reverse Kullback-Leibler divergence. The student's probability carries gradient everywhere,
    in the correction too: ``d/dp = log(p / q)``.

    Args:
        logprobs: [N, k] the student's at the teacher's tokens, over the whole vocabulary, carries gradient, nats.
        teacher_logprobs: [N, k] the teacher's, over the whole vocabulary, nats; treated as constant.
        weights: broadcastable to [N]: what each of the N trained tokens counts.

    Returns:
        The scalar loss and sums over the N tokens: ``policy/trusted_fraction`` (those that count),
        ``teacher/divergence`` (nats), ``teacher/student_mass`` and ``teacher/teacher_mass`` (probability on the
        teacher's tokens).
    """
    log_p = logprobs.clamp(min=FLOOR)
    log_q = teacher_logprobs.detach().clamp(min=FLOOR)
    p, q = log_p.exp(), log_q.exp()
    divergence = (p * (log_p - log_q) - p + q).sum(-1)
    return (weights * divergence).sum(), {
        "policy/trusted_fraction": (weights * torch.ones_like(divergence) != 0).sum(),
        "teacher/divergence": divergence.detach().sum(),
        "teacher/student_mass": p.detach().sum(),
        "teacher/teacher_mass": q.sum(),
    }

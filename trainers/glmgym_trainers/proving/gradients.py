"""The gradient that a learner would follow on a batch, without following it: for measuring how much batches agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms import Extra, Forward
from glmgym_trainers.batch import collate, rows_of
from glmgym_trainers.critic import score_prefixes
from glmgym_trainers.learner import Learner
from glmgym_trainers.reductions import weigh

ALL = 1 << 20  # tokens; a batch of the proving ground is one forward


def policy_gradient(learner: Learner, trajectories: Sequence[Trajectory]) -> Tensor:
    """[parameters] gradient of the policy's loss on one batch; weights and optimisers stay as they are."""
    algorithm, actor = learner.algorithm, learner.actor
    extra = Extra(score_prefixes(learner.critic, trajectories, max_tokens=ALL) if learner.critic else {})
    rows = rows_of(trajectories, [credit for each in trajectories for credit in algorithm.credit([each], extra)])
    batch = collate(weigh(rows, algorithm.reduction))
    logprobs = actor.logprobs(batch)
    parameters = [parameter for parameter in actor.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(algorithm.loss(Forward(logprobs, logprobs.detach()), batch).loss, parameters)
    return torch.cat([part.flatten() for part in parts])


def agreement(gradients: Sequence[Tensor]) -> float:
    """Mean cosine of all pairs: what independent batches have in common, against what is noise of each."""
    pairs = [float(functional.cosine_similarity(a, b, dim=0)) for a, b in combinations(gradients, 2)]
    return sum(pairs) / len(pairs)

"""What turns one batch of trajectories into one update: values, credit, critic steps, the policy step.

Owned here: the order of these inside a step, the optimisers and the counters. It is blind to the algorithm (credit and
loss are the algorithm's) and to where trajectories come from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glmgym.metrics import Metric, merge, values
from glmgym.trajectory import Trajectory
from glmgym_trainers.actor import Actor, Parity, check_parity
from glmgym_trainers.algorithms import Algorithm, Extra, Forward
from glmgym_trainers.batch import Row, collate, count_sampled, micro_batches, rows_of
from glmgym_trainers.credit import explained_variance
from glmgym_trainers.critic import Critic, score_prefixes
from glmgym_trainers.optim import optimizer_step
from glmgym_trainers.settings import TrainerSettings


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update did: its numbers, and the sampled tokens of each trajectory that entered the loss."""

    metrics: dict[str, float]
    trained: dict[str, int]


class Learner:
    """Actor, critic, optimisers and counters.

    ``step_count`` counts batches; ``version`` counts publications of the policy, so it stands still while the critic
    warms up and moves every ``sync_every`` policy updates.
    """

    def __init__(
        self, model: Any, algorithm: Algorithm, settings: TrainerSettings, *, temperature: float = 1.0
    ) -> None:
        self.actor = Actor(model).train()
        self.algorithm = algorithm
        self.critic = Critic(model, freeze=algorithm.freeze) if algorithm.uses_critic else None
        self.step_count = 0
        self.version = 0
        self._settings = settings
        self._temperature = temperature
        self._updates = 0  # of the policy
        self._actor_optimizer = self._optimizer(self.actor, settings.lr)
        self._critic_optimizer = self._optimizer(self.critic, settings.critic_lr) if self.critic else None

    @property
    def total_steps(self) -> int:
        """Batches of the whole run: critic warm-up, then policy updates."""
        return self.algorithm.value_warmup + self._settings.steps

    def step(self, trajectories: Sequence[Trajectory]) -> StepReport:
        """Learn from one batch of whole groups.

        Raises:
            NonFiniteGradient: the model broke; its weights are as before.
        """
        limit = self._settings.micro_batch_tokens
        extra = Extra(score_prefixes(self.critic, trajectories, max_tokens=limit) if self.critic else {})
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group_id or trajectory.id, []).append(trajectory)
        rows = rows_of(trajectories, [c for group in groups.values() for c in self.algorithm.credit(group, extra)])
        parts: list[Mapping[str, Metric]] = []
        metrics = {"batch/rows": float(len(rows)), **_credit_numbers(rows, extra)}
        for _ in range(self.algorithm.critic_updates if self.critic else 0):
            metrics["value/loss"] = self._critic_update(rows, parts)
        if self.step_count >= self.algorithm.value_warmup:
            metrics |= self._policy_update(rows, parts)
        self.step_count += 1
        trained = Counter[str]()
        for row in rows:
            trained[row.trajectory_id] += row.num_sampled
        return StepReport(
            {**metrics, **values(merge(parts))}, {trajectory.id: trained[trajectory.id] for trajectory in trajectories}
        )

    def parity(self, trajectories: Sequence[Trajectory], *, bound: float) -> Parity:
        """Compare the actor's log-probs with the recorded ones of tokens that the actor's own version sampled.

        Raises:
            ParityError: one differs by more than ``bound`` nats; the message lists the worst tokens.
        """
        rows = [Row.of(t, index) for t in trajectories for index in range(len(t.segments))]
        ours, theirs, labels = [], [], []
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group, num_tokens=1)
            with torch.no_grad():
                logprobs = self.actor.logprobs(batch, self._temperature)
            for index, row in enumerate(group):
                at = np.flatnonzero(row.sampled_mask & (row.versions == self.version))
                ours.append(logprobs[index, at])
                theirs.append(batch.rollout_logprobs[index, at])
                labels += [f"{row.trajectory_id} token {p} (id {row.token_ids[p]})" for p in at]
        mine = torch.cat(ours)
        return check_parity(
            mine, torch.cat(theirs), torch.ones_like(mine, dtype=torch.bool), bound=bound, labels=labels
        )

    def weights(self) -> dict[str, Tensor]:
        """A copy of the policy's weights by name, for publication."""
        return {name: tensor.detach().clone() for name, tensor in self.actor.model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Everything but the policy's weights that a resumed run needs."""
        return {
            "step_count": self.step_count,
            "version": self.version,
            "updates": self._updates,
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic": self.critic.state_dict() if self.critic else None,
            "critic_optimizer": self._critic_optimizer.state_dict() if self._critic_optimizer else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the policy's weights come with the model."""
        self.step_count, self.version, self._updates = state["step_count"], state["version"], state["updates"]
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        if self.critic and self._critic_optimizer:
            self.critic.load_state_dict(state["critic"])
            self._critic_optimizer.load_state_dict(state["critic_optimizer"])

    def _critic_update(self, rows: list[Row], parts: list[Mapping[str, Metric]]) -> float:
        """One step of the critic on the whole batch; the mean squared error before it."""
        assert self.critic is not None
        assert self._critic_optimizer is not None
        total, num_tokens = 0.0, count_sampled(rows)
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group, num_tokens=num_tokens)
            out = self.algorithm.critic_loss(self.critic.values(batch), batch)
            out.loss.backward()
            total += float(out.loss.detach())
        _, metrics = optimizer_step(
            self._critic_optimizer,
            self.critic.parameters(),
            num_trusted=sum(row.num_sampled for row in rows),
            max_grad_norm=self._settings.max_grad_norm,
        )
        parts.append({f"critic_{name}": metric for name, metric in metrics.items()})
        return total

    def _policy_update(self, rows: list[Row], parts: list[Mapping[str, Metric]]) -> dict[str, float]:
        num_tokens = count_sampled(rows)
        sums: defaultdict[str, float] = defaultdict(float)
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group, num_tokens=num_tokens)
            out = self.algorithm.loss(Forward(self.actor.logprobs(batch, self._temperature)), batch)
            out.loss.backward()
            sums["policy/loss"] += float(out.loss.detach())
            for name, value in out.sums.items():
                sums[name] += float(value)
        _, metrics = optimizer_step(
            self._actor_optimizer,
            self.actor.parameters(),
            num_trusted=int(sums["dis/trusted"]),
            max_grad_norm=self._settings.max_grad_norm,
        )
        parts.append(metrics)
        self._updates += 1
        if self._updates % self._settings.sync_every == 0:
            self.version += 1
            if self._settings.reset_optimizer:
                self._actor_optimizer = self._optimizer(self.actor, self._settings.lr)
        sampled = max(sums["dis/sampled"], 1.0)
        return {
            "policy/loss": sums["policy/loss"],
            "dis/sampled": sums["dis/sampled"],
            "dis/trusted_fraction": sums["dis/trusted"] / sampled,
            "dis/abs_log_ratio": sums["dis/abs_log_ratio"] / sampled,
            "dis/k3": sums["dis/k3"] / sampled,
        }

    def _optimizer(self, module: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=lr, betas=self._settings.betas, weight_decay=self._settings.weight_decay)


def _credit_numbers(rows: Sequence[Row], extra: Extra) -> dict[str, float]:
    """How the critic did on this batch before learning from it, and the spread of the advantages."""
    if not rows:
        return {}
    advantages = np.concatenate([row.advantages[row.sampled_mask] for row in rows])
    numbers = {"credit/advantage_std": float(advantages.std())}
    if extra.values:
        returns = np.concatenate([row.returns[row.sampled_mask] for row in rows])
        predicted = [extra.values[row.trajectory_id, row.segment_index][:-1][row.sampled_mask] for row in rows]
        numbers["value/explained_variance"] = explained_variance(returns, np.concatenate(predicted))
    return numbers

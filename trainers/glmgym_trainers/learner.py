"""What turns one batch of trajectories into one update: values, credit, critic steps, the policy step.

Owned here: the order of these inside a step, the optimisers and the counters. It is blind to the algorithm (credit and
loss are the algorithm's) and to where trajectories come from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmgym.metrics import Metric, merge, values
from glmgym.scoring import TeacherScore
from glmgym.trajectory import NO_VERSION, Trajectory
from glmgym_trainers import lora
from glmgym_trainers.actor import Actor, Parity, check_parity
from glmgym_trainers.algorithms import Algorithm, Extra, Forward
from glmgym_trainers.batch import Batch, Row, collate, micro_batches, rows_of, split_trajectories
from glmgym_trainers.credit import explained_variance, has_signal
from glmgym_trainers.critic import Critic, score_prefixes
from glmgym_trainers.freezing import freeze
from glmgym_trainers.optim import optimizer_step
from glmgym_trainers.reductions import weigh
from glmgym_trainers.settings import TrainerSettings, TuningSettings

TeacherScores = Mapping[tuple[str, int], TeacherScore]  # by trajectory id and segment index


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update did: its numbers, and the sampled tokens of each trajectory that entered the loss.

    ``advantages`` are those of sampled tokens, [sampled] by trajectory id and segment index; NaN where left out.
    """

    metrics: dict[str, float]
    trained: dict[str, int]
    advantages: dict[tuple[str, int], NDArray[np.float32]]


class Learner:
    """Actor, critic, optimisers and counters.

    ``step_count`` counts batches; ``version`` counts publications of the policy, so it stands still while the critic
    warms up and moves every ``sync_every`` steps of the policy.
    """

    def __init__(
        self,
        model: Any,
        algorithm: Algorithm,
        settings: TrainerSettings,
        *,
        temperature: float = 1.0,
        tuning: TuningSettings | None = None,
    ) -> None:
        self.algorithm = algorithm
        # First: the critic is a copy of the model as it was given, with all of it trained but ``algorithm.freeze``.
        self.critic = Critic(model, freeze=algorithm.freeze) if algorithm.uses_critic else None
        self.actor = Actor(_tuned(model, tuning or TuningSettings())).train()
        self.step_count = 0
        self.version = 0
        self._settings = settings
        self._temperature = temperature
        self._policy_steps = 0
        self._actor_optimizer = self._optimizer(self.actor, settings.lr)
        self._critic_optimizer = self._optimizer(self.critic, settings.critic_lr) if self.critic else None

    @property
    def total_steps(self) -> int:
        """Batches of the whole run: critic warm-up, then policy updates."""
        return self.algorithm.value_warmup + self._settings.steps

    def step(self, trajectories: Sequence[Trajectory], teachers: TeacherScores | None = None) -> StepReport:
        """Learn from one batch of whole groups. ``teachers`` are needed by algorithms that use one.

        Raises:
            NonFiniteGradient: the model broke; its weights are as before.
        """
        limit = self._settings.micro_batch_tokens
        prefixes = score_prefixes(self.critic, trajectories, max_tokens=limit) if self.critic else {}
        extra = Extra(prefixes, teachers or {})
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group_id or trajectory.id, []).append(trajectory)
        by_group = [self.algorithm.credit(group, extra) for group in groups.values()]
        credits = [credit for group in by_group for credit in group]
        rows = weigh([_with_extra(row, extra) for row in rows_of(trajectories, credits)], self.algorithm.reduction)
        parts: list[Mapping[str, Metric]] = []
        metrics = {"batch/rows": float(len(rows)), **_credit_numbers(rows, extra)}
        if self.algorithm.group_size > 1:
            credited = [group for group in by_group if group]
            silent = sum(not has_signal(group) for group in credited)
            metrics["credit/zero_signal_fraction"] = silent / max(len(credited), 1)
        for _ in range(self.algorithm.critic_updates if self.critic else 0):
            metrics["value/loss"] = self._critic_update(rows, parts)
        if self.step_count >= self.algorithm.value_warmup:
            metrics |= self._policy_step(rows, parts)
        self.step_count += 1
        trained = Counter[str]()
        for row in rows:
            trained[row.trajectory_id] += row.num_trained
        return StepReport(
            {**metrics, **values(merge(parts))},
            {trajectory.id: trained[trajectory.id] for trajectory in trajectories},
            {(row.trajectory_id, row.segment_index): _advantages(row) for row in rows},
        )

    def parity(self, trajectories: Sequence[Trajectory], *, bound: float) -> Parity:
        """Compare the actor's log-probs with the recorded ones of tokens that the actor's own version sampled.

        Raises:
            ParityError: one differs by more than ``bound`` nats; the message lists the worst tokens.
        """
        rows = [Row.of(t, index) for t in trajectories for index in range(len(t.segments))]
        ours, theirs, labels = [], [], []
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group)
            with torch.no_grad():
                logprobs = self.actor.logprobs(batch, self._temperature)
            for index, row in enumerate(group):
                at = np.flatnonzero(row.trained_mask & (row.versions == self.version))
                ours.append(logprobs[index, at])
                theirs.append(batch.rollout_logprobs[index, at])
                labels += [f"{row.trajectory_id} token {p} (id {row.token_ids[p]})" for p in at]
        mine = torch.cat(ours)
        return check_parity(
            mine, torch.cat(theirs), torch.ones_like(mine, dtype=torch.bool), bound=bound, labels=labels
        )

    def policy(self) -> Any:
        """The policy as a plain transformers model: adapters, if it has any, are merged into a copy."""
        return lora.merged(self.actor.model)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the policy's weights by name, for publication."""
        return {name: tensor.detach().clone() for name, tensor in self.policy().state_dict().items()}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside the policy's weights: those it has now or, with adapters, started from."""
        return {
            "step_count": self.step_count,
            "version": self.version,
            "policy_steps": self._policy_steps,
            "adapters": lora.adapter_state(self.actor.model),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic": self.critic.state_dict() if self.critic else None,
            "critic_optimizer": self._critic_optimizer.state_dict() if self._critic_optimizer else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the weights that ``state`` leaves out come with the model."""
        self.step_count, self.version = state["step_count"], state["version"]
        self._policy_steps = state["policy_steps"]
        lora.load_adapters(self.actor.model, state["adapters"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        if self.critic and self._critic_optimizer:
            self.critic.load_state_dict(state["critic"])
            self._critic_optimizer.load_state_dict(state["critic_optimizer"])

    def _critic_update(self, rows: Sequence[Row], parts: list[Mapping[str, Metric]]) -> float:
        """One step of the critic on the whole batch; its loss before it."""
        assert self.critic is not None
        assert self._critic_optimizer is not None
        total = 0.0
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group)
            out = self.algorithm.critic_loss(self.critic.values(batch), batch)
            out.loss.backward()
            total += float(out.loss.detach())
        _, metrics = optimizer_step(
            self._critic_optimizer,
            self.critic.parameters(),
            num_trusted=_num_trained(rows),
            max_grad_norm=self._settings.max_grad_norm,
        )
        parts.append({f"critic_{name}": metric for name, metric in metrics.items()})
        return total

    def _policy_step(self, rows: Sequence[Row], parts: list[Mapping[str, Metric]]) -> dict[str, float]:
        """As many updates as there are mini-batches; the numbers are means over the tokens of all of them."""
        shares = split_trajectories(rows, self._settings.minibatches)
        if self.algorithm.uses_old_logprobs and len(shares) > 1:
            shares = [self._with_old_logprobs(share) for share in shares]
        sums: defaultdict[str, float] = defaultdict(float)
        lr = self._settings.lr_at(self._policy_steps)
        for parameters in self._actor_optimizer.param_groups:
            parameters["lr"] = lr
        for share in shares:
            self._policy_update(weigh(share, self.algorithm.reduction), sums, parts)
        self._policy_steps += 1
        if self._policy_steps % self._settings.sync_every == 0:
            self.version += 1
            if self._settings.reset_optimizer:
                self._actor_optimizer = self._optimizer(self.actor, self._settings.lr)
        loss, trained = sums.pop("policy/loss", 0.0), _num_trained(rows)
        numbers = {name: total / max(trained, 1) for name, total in sums.items()}
        own = {"policy/loss": loss / max(len(shares), 1), "policy/trained_tokens": float(trained), "optim/lr": lr}
        return own | numbers

    def _policy_update(self, rows: Sequence[Row], sums: dict[str, float], parts: list[Mapping[str, Metric]]) -> None:
        """One step of the policy on weighted rows. ``sums`` and ``parts`` are added to."""
        num_trusted = 0
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            batch = collate(group)
            out = self.algorithm.loss(self._forward(batch), batch)
            out.loss.backward()
            sums["policy/loss"] += float(out.loss.detach())
            num_trusted += int(out.sums["policy/trusted_fraction"])
            for name, value in out.sums.items():
                sums[name] += float(value)
        _, metrics = optimizer_step(
            self._actor_optimizer,
            self.actor.parameters(),
            num_trusted=num_trusted,
            max_grad_norm=self._settings.max_grad_norm,
        )
        parts.append(metrics)

    def _forward(self, batch: Batch) -> Forward:
        top = None
        if batch.teacher_top_ids is None:
            logprobs = self.actor.logprobs(batch, self._temperature)
        else:
            logprobs, top = self.actor.logprobs_with_top(batch, self._temperature)
        old = batch.old_logprobs
        # A single update starts from the weights it is computed at: its own log-probs are the old ones.
        return Forward(logprobs, logprobs.detach() if old is None else old, top, self.version)

    @torch.no_grad()
    def _with_old_logprobs(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with the policy's log-probs as they are now."""
        out = []
        for group in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            logprobs = self.actor.logprobs(collate(group), self._temperature).numpy()
            out += [replace(row, old_logprobs=own[: len(row)]) for row, own in zip(group, logprobs, strict=True)]
        return out

    def _optimizer(self, module: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=lr, betas=self._settings.betas, weight_decay=self._settings.weight_decay)


def _tuned(model: Any, tuning: TuningSettings) -> Any:
    """``model`` itself, with its adapters added and what does not train frozen."""
    if tuning.lora_rank:
        lora.add_adapters(model, rank=tuning.lora_rank, alpha=tuning.lora_alpha, targets=tuning.lora_targets)
    freeze(model, tuning.freeze)
    return model


def _with_extra(row: Row, extra: Extra) -> Row:
    key = row.trajectory_id, row.segment_index
    prefixes = extra.values.get(key)
    return replace(row, old_values=None if prefixes is None else prefixes[:-1], teacher=extra.teachers.get(key))


def _advantages(row: Row) -> NDArray[np.float32]:
    return np.where(row.trained_mask, row.advantages, np.float32(np.nan))[row.versions != NO_VERSION]


def _num_trained(rows: Sequence[Row]) -> int:
    return sum(row.num_trained for row in rows)


def _credit_numbers(rows: Sequence[Row], extra: Extra) -> dict[str, float]:
    """How the critic did on this batch before learning from it, and the spread of the advantages."""
    if not rows:
        return {}
    advantages = np.concatenate([row.advantages[row.trained_mask] for row in rows])
    numbers = {"credit/advantage_std": float(advantages.std())}
    if extra.values:
        returns = np.concatenate([row.returns[row.trained_mask] for row in rows])
        predicted = [extra.values[row.trajectory_id, row.segment_index][:-1][row.trained_mask] for row in rows]
        numbers["value/explained_variance"] = explained_variance(returns, np.concatenate(predicted))
    return numbers

"""Four algorithms to compare with: TIS, CISPO, GSPO and decoupled PPO. Groups as in GRPO, other objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from glmgym.trajectory import Trajectory
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.clip import ClipSettings, clipped_loss
from glmgym_trainers.algorithms.group import GroupSettings, group_credit
from glmgym_trainers.batch import Batch
from glmgym_trainers.credit import Credit
from glmgym_trainers.importance import importance_weight, interpolated_logprobs
from glmgym_trainers.losses import cispo_loss, gspo_loss
from glmgym_trainers.reductions import Reduction


class AlternativeSettings(GroupSettings):
    """Groups as slime's public GLM recipes have them."""

    scale: Literal["none", "std"] = "std"  # divide by the group's deviation; slime's
    reduction: Reduction = "rollout_mean"  # slime's


class GroupAlgorithm(Algorithm):
    """Credit by groups; the objective is a subclass's."""

    uses_old_logprobs = True

    def __init__(self, settings: AlternativeSettings) -> None:
        self.group_size = settings.group_size
        self.reduction = settings.reduction
        self._group = settings

    def credit(self, group: Sequence[Trajectory], extra: Extra) -> list[Credit]:
        """See ``group_credit``."""
        return group_credit(self._group, group)


class TisSettings(AlternativeSettings, ClipSettings):
    """The band of the public GLM-5.2 script of slime."""

    name: Literal["tis"] = "tis"
    low: float = Field(0.5, ge=0, le=1)  # least weight of a token; slime's own default is 0
    high: float = Field(2.0, ge=1)  # largest weight of a token


class Tis(GroupAlgorithm):
    """The clipped surrogate, weighted by trainer against engine with the weight clamped: nothing is dropped."""

    Settings = TisSettings
    name = "tis"

    def __init__(self, settings: TisSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        weight = importance_weight(
            forward.old_logprobs,
            batch.rollout_logprobs,
            batch.trained_mask,
            low=self.settings.low,
            high=self.settings.high,
            mode="clamp",
        )
        return clipped_loss(self.settings, forward, batch, correction=weight)


class CispoSettings(AlternativeSettings):
    """Bounds of the ratio itself."""

    name: Literal["cispo"] = "cispo"
    low: float = Field(0.0, ge=0, le=1)  # least weight of a token; 0 for none
    high: float = Field(4.0, ge=1)  # largest weight of a token; ours, as DIS has it
    old: Literal["trainer", "rollout"] = "trainer"  # whose log-probs the ratio is taken to


class Cispo(GroupAlgorithm):
    """Every token keeps its gradient; its ratio is clamped and constant."""

    Settings = CispoSettings
    name = "cispo"

    def __init__(self, settings: CispoSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.uses_old_logprobs = settings.old == "trainer"

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own = self.settings
        old = batch.rollout_logprobs if own.old == "rollout" else forward.old_logprobs
        loss, sums = cispo_loss(
            forward.logprobs, old, batch.advantages, batch.trained_mask, batch.weights, low=own.low, high=own.high
        )
        return LossOut(loss, sums)


class GspoSettings(AlternativeSettings):
    """Distances from 1 of the ratio of a whole sequence, which moves far less than a token's."""

    name: Literal["gspo"] = "gspo"
    eps_low: float = Field(3e-4, ge=0, lt=1)  # GSPO
    eps_high: float = Field(4e-4, ge=0)  # GSPO
    reduction: Reduction = "seq_mean"  # GSPO: sequences count alike


class Gspo(GroupAlgorithm):
    """One ratio per segment, the geometric mean over its tokens, clipped or kept as a whole."""

    Settings = GspoSettings
    name = "gspo"

    def __init__(self, settings: GspoSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        loss, sums = gspo_loss(
            forward.logprobs,
            forward.old_logprobs,
            batch.advantages,
            batch.trained_mask,
            batch.weights,
            eps_low=self.settings.eps_low,
            eps_high=self.settings.eps_high,
        )
        return LossOut(loss, sums)


class DecoupledPpoSettings(AlternativeSettings, ClipSettings):
    """The proximal policy of the clip is not the one that sampled (AReaL)."""

    name: Literal["decoupled_ppo"] = "decoupled_ppo"
    cap: float = Field(5.0, ge=1)  # largest weight of proximal against sampling policy; AReaL's examples
    cap_mode: Literal["clamp", "ratio"] = "clamp"  # above the cap: held there, or ("ratio") the token does not train
    proximal: Literal["trainer", "interpolated"] = "trainer"  # recomputed, or guessed from the versions' distance


class DecoupledPpo(GroupAlgorithm):
    """The clip is on current against proximal policy, the constant weight on proximal against sampling policy."""

    Settings = DecoupledPpoSettings
    name = "decoupled_ppo"

    def __init__(self, settings: DecoupledPpoSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.uses_old_logprobs = settings.proximal == "trainer"

    def loss(self, forward: Forward, batch: Batch) -> LossOut:
        own = self.settings
        proximal = forward.old_logprobs
        if own.proximal == "interpolated":
            proximal = interpolated_logprobs(forward.logprobs, batch.rollout_logprobs, batch.versions, forward.version)
        weight = importance_weight(
            proximal, batch.rollout_logprobs, batch.trained_mask, low=0.0, high=own.cap, mode=own.cap_mode
        )
        return clipped_loss(own, forward, batch, old_logprobs=proximal, correction=weight)

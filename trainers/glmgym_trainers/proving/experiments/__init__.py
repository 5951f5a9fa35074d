"""The experiments by name, in the order in which ``glmgym prove all`` runs them: those with gates first."""

from __future__ import annotations

from glmgym_trainers.proving.experiment import Experiment
from glmgym_trainers.proving.experiments import (
    compaction,
    critic,
    dis_stability,
    opd_merge,
    sao_vs_grpo,
    skip_observation,
)

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (compaction, sao_vs_grpo, skip_observation, opd_merge, dis_stability, critic)
}

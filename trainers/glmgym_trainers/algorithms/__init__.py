"""The algorithms by name. Each class carries its settings model as ``Settings`` and is built from one of those."""

from __future__ import annotations

from typing import Any

from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.alternatives import (
    Cispo,
    CispoSettings,
    DecoupledPpo,
    DecoupledPpoSettings,
    Gspo,
    GspoSettings,
    Tis,
    TisSettings,
)
from glmgym_trainers.algorithms.compaction import CompactionRl, CompactionRlSettings
from glmgym_trainers.algorithms.dis import Dis, DisSettings
from glmgym_trainers.algorithms.grpo import Grpo, GrpoSettings
from glmgym_trainers.algorithms.imitation import Imitation, ImitationSettings
from glmgym_trainers.algorithms.mopd import Mopd, MopdSettings
from glmgym_trainers.algorithms.opd import Opd, OpdSettings
from glmgym_trainers.algorithms.sao import Sao, SaoSettings

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Cispo",
    "CispoSettings",
    "CompactionRl",
    "CompactionRlSettings",
    "DecoupledPpo",
    "DecoupledPpoSettings",
    "Dis",
    "DisSettings",
    "Extra",
    "Forward",
    "Grpo",
    "GrpoSettings",
    "Gspo",
    "GspoSettings",
    "Imitation",
    "ImitationSettings",
    "LossOut",
    "Mopd",
    "MopdSettings",
    "Opd",
    "OpdSettings",
    "Sao",
    "SaoSettings",
    "Tis",
    "TisSettings",
]

# Not type[Algorithm]: each is built from settings of its own type, which the contract does not know.
ALGORITHMS: dict[str, type[Any]] = {
    "sao": Sao,
    "dis": Dis,
    "grpo": Grpo,
    "compaction": CompactionRl,
    "opd": Opd,
    "mopd": Mopd,
    "tis": Tis,
    "cispo": Cispo,
    "gspo": Gspo,
    "decoupled_ppo": DecoupledPpo,
    "imitation": Imitation,
}

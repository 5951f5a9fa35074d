"""The algorithms by name. Each class carries its settings model as ``Settings`` and is built from one of those."""

from __future__ import annotations

from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.dis import Dis, DisSettings
from glmgym_trainers.algorithms.sao import Sao, SaoSettings

__all__ = ["ALGORITHMS", "Algorithm", "Dis", "DisSettings", "Extra", "Forward", "LossOut", "Sao", "SaoSettings"]

ALGORITHMS: dict[str, type[Dis] | type[Sao]] = {"dis": Dis, "sao": Sao}

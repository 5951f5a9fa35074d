"""The algorithms by name. Each class carries its settings model as ``Settings`` and is built from one of those."""

from __future__ import annotations

from typing import Any

from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.dis import Dis, DisSettings
from glmgym_trainers.algorithms.sao import Sao, SaoSettings

__all__ = ["ALGORITHMS", "Algorithm", "Dis", "DisSettings", "Extra", "Forward", "LossOut", "Sao", "SaoSettings"]

# Not type[Algorithm]: each is built from settings of its own type, which the contract does not know.
ALGORITHMS: dict[str, type[Any]] = {"dis": Dis, "sao": Sao}

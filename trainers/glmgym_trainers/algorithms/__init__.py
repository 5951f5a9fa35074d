"""The algorithms by name, each with the settings model that stands next to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glmgym.errors import UnknownName
from glmgym.settings import parse_settings
from glmgym_trainers.algorithms.algorithm import Algorithm, Extra, Forward, LossOut
from glmgym_trainers.algorithms.dis import Dis, DisSettings
from glmgym_trainers.algorithms.sao import Sao, SaoSettings

__all__ = [
    "Algorithm",
    "Dis",
    "DisSettings",
    "Extra",
    "Forward",
    "LossOut",
    "Sao",
    "SaoSettings",
    "make_algorithm",
]

_ALGORITHMS: dict[str, tuple[type[Any], type[Any]]] = {"dis": (Dis, DisSettings), "sao": (Sao, SaoSettings)}


def make_algorithm(name: str, settings: Mapping[str, Any], *, where: str = "[algorithm]") -> Algorithm:
    """Build an algorithm from plain data.

    Raises:
        UnknownName: no algorithm of that name.
        ConfigError: a setting is unknown or out of its range.
    """
    if name not in _ALGORITHMS:
        raise UnknownName("algorithm", name, _ALGORITHMS)
    algorithm, model = _ALGORITHMS[name]
    made: Algorithm = algorithm(parse_settings(model, settings, where=where))
    return made

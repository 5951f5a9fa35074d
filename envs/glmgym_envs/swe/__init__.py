"""The SWE environment: repositories with a defect, and hidden tests. ``swe-mini-v0`` ships, ``swe-v0`` is built.

``python -m glmgym_envs.swe build`` makes the tasks of ``swe-v0`` on this machine, from packages of the index.
"""

from functools import partial
from pathlib import Path

from glmgym.registry import register
from glmgym_envs.swe.env import SweEnv, oracle_of
from glmgym_envs.swe.place import box_of
from glmgym_envs.swe.task import SweTaskSet, default_root

__all__ = ["SWE", "SWE_MINI", "SweEnv", "SweTaskSet"]

MAX_TURNS = 60
BUILD = "python -m glmgym_envs.swe build"

_mini = SweTaskSet(Path(__file__).parent / "data")
_built = SweTaskSet(default_root(), how_to_build=BUILD)

SWE_MINI = register(
    "swe-mini-v0",
    partial(SweEnv, _mini),
    tasks=_mini,
    box=box_of,
    oracle=partial(oracle_of, _mini),
    max_turns=MAX_TURNS,
    description="Repair a Python package; hidden tests decide. A small set that needs no download.",
)
SWE = register(
    "swe-v0",
    partial(SweEnv, _built),
    tasks=_built,
    box=box_of,
    oracle=partial(oracle_of, _built),
    max_turns=MAX_TURNS,
    description=f"Repair a Python package; hidden tests decide. Build its tasks once: {BUILD}",
)

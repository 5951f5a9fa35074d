"""glmgym's environments for Gymnasium: importing this registers ``glmgym/SWE-v0`` and the others.

``import glmgym`` does it by itself when ``gymnasium`` was imported before. Either way nothing is loaded until an
environment is made.
"""

from __future__ import annotations

try:
    import gymnasium
except ImportError as error:
    raise ImportError("glmgym.gym needs gymnasium: pip install 'glmgym[gym]'") from error

from glmgym.gym.env import GlmEnv
from glmgym.gym.spaces import Unicode
from glmgym.gym.vector import GlmVectorEnv

__all__ = ["FAMILIES", "GlmEnv", "GlmVectorEnv", "Unicode"]

FAMILIES = {  # id -> the suite it plays unless told otherwise
    "glmgym/SWE-v0": "swe-mini",
    "glmgym/Terminal-v0": "terminal-basics",
    "glmgym/Search-v0": "search-mini",
    "glmgym/Browser-v0": "miniwob",
    "glmgym/Env-v0": "reasoning-basics",
}

for _id, _suite in FAMILIES.items():
    gymnasium.register(
        _id,
        entry_point="glmgym.gym.env:GlmEnv",
        vector_entry_point="glmgym.gym.vector:GlmVectorEnv",
        kwargs={"suite": _suite},
        disable_env_checker=True,  # it plays episodes of its own, and a box is not free; run check_env when you want it
    )

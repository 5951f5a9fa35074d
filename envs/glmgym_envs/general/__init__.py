"""General replies: a right answer and the style that was asked for, registered as ``general-basics-v0``."""

from glmgym.registry import register
from glmgym.tasks import procedural
from glmgym_envs.general.basics import MAX_TURNS, demonstrate, make, oracle
from glmgym_envs.general.env import General, GeneralData

__all__ = ["General", "GeneralData", "demonstrate", "oracle"]

GENERAL_BASICS = register(
    "general-basics-v0",
    General,
    tasks=procedural(make, train=100_000, heldout=512, name="general-basics-v0"),
    oracle=oracle,
    max_turns=MAX_TURNS,
)

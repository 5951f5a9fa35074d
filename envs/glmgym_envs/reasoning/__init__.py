"""Reasoning: a small procedural suite, ``reasoning-basics-v0``, and every generator of the reasoning-gym library."""

from glmgym.registry import register
from glmgym.sandbox import BoxSpec, Limits
from glmgym.tasks import procedural
from glmgym_envs.reasoning.basics import MAX_TURNS, demonstrate, make, oracle
from glmgym_envs.reasoning.env import Reasoning, ReasoningData
from glmgym_envs.reasoning.generators import ReasoningGym, register_generator
from glmgym_envs.reasoning.names import GENERATORS

__all__ = [
    "GENERATORS",
    "Reasoning",
    "ReasoningData",
    "ReasoningGym",
    "demonstrate",
    "oracle",
    "register_generator",
]

REASONING_BASICS = register(
    "reasoning-basics-v0",
    Reasoning,
    tasks=procedural(make, train=100_000, heldout=512, name="reasoning-basics-v0"),
    box=BoxSpec(limits=Limits(memory_mb=128, pids=32, disk_mb=16, output_bytes=4096)),
    oracle=oracle,
    max_turns=MAX_TURNS,
)

for _generator in GENERATORS:
    register_generator(_generator)

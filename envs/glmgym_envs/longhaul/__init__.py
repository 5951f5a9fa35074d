"""Chains of files longer than a small context, registered as ``longhaul-v0``: an early fact must outlive compaction."""

from glmgym.registry import register
from glmgym.tasks import procedural
from glmgym_envs.longhaul.env import LongHaul
from glmgym_envs.longhaul.hauler import Hauler, demonstrate, oracle, rehearse, summary
from glmgym_envs.longhaul.hauls import COMPACTION, CONTEXT_TOKENS, MAX_TURNS, make
from glmgym_envs.terminal import TERMINAL_BASICS

__all__ = ["COMPACTION", "CONTEXT_TOKENS", "Hauler", "LongHaul", "demonstrate", "oracle", "rehearse", "summary"]

LONGHAUL = register(
    "longhaul-v0",
    LongHaul,
    tasks=procedural(make, train=100_000, heldout=512, name="longhaul-v0"),
    box=TERMINAL_BASICS.box,
    oracle=oracle,
    max_turns=MAX_TURNS,
)

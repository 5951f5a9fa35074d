"""The Terminal environment and its procedural suite, registered as ``terminal-basics-v0``."""

from glmgym.registry import register
from glmgym.sandbox import BoxSpec, Limits
from glmgym.tasks import procedural
from glmgym_envs.terminal.basics import MAX_TURNS, TerminalBasics, demonstrate, make, noisy_oracle, oracle
from glmgym_envs.terminal.env import Terminal, TerminalData
from glmgym_envs.terminal.words import WORDS

__all__ = ["WORDS", "Terminal", "TerminalBasics", "TerminalData", "demonstrate", "noisy_oracle", "oracle"]

TERMINAL_BASICS = register(
    "terminal-basics-v0",
    TerminalBasics,
    tasks=procedural(make, train=100_000, heldout=512, name="terminal-basics-v0"),
    box=BoxSpec(limits=Limits(memory_mb=128, pids=32, disk_mb=16, output_bytes=4096)),
    oracle=oracle,
    max_turns=MAX_TURNS,
)

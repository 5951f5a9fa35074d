"""Grading that nobody can forge: trusted tests, boxes to grade in, results with an owner. See docs/grading.md."""

from glmgym_envs.grading.history import git_is_clean, git_problems
from glmgym_envs.grading.modes import Artifact, GradingBox, Mode, in_place, separate, shared
from glmgym_envs.grading.pytest_run import Interpreter, PytestOutcome, grade_f2p_p2p, run_pytest
from glmgym_envs.grading.rewards import read_rewards
from glmgym_envs.grading.trusted import TrustedTests, digest, restore

__all__ = [
    "Artifact",
    "GradingBox",
    "Interpreter",
    "Mode",
    "PytestOutcome",
    "TrustedTests",
    "digest",
    "git_is_clean",
    "git_problems",
    "grade_f2p_p2p",
    "in_place",
    "read_rewards",
    "restore",
    "run_pytest",
    "separate",
    "shared",
]

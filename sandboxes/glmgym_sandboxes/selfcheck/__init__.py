"""The contract of ``glmgym.sandbox`` as checks that run on any backend, a third party's included.

``glmgym sandbox self-check --backend NAME`` runs them on whatever is registered in the entry-point group
``glmgym.sandboxes``; our own tests run the same ones over our backends. Each file holds a theme.
"""

from __future__ import annotations

from glmgym_sandboxes.selfcheck import commands, death, files, isolation, limits, processes, shells, trees
from glmgym_sandboxes.selfcheck.check import Check, NotApplicable, Subject, Unmet, check
from glmgym_sandboxes.selfcheck.runner import Outcome, run_check, run_checks, select

CHECKS: tuple[Check, ...] = tuple(
    each
    for theme in (files, trees, commands, processes, shells, limits, isolation, death)
    for each in vars(theme).values()
    if isinstance(each, Check)
)
SELF_CHECK = (CHECKS, select, run_checks)  # what the command line finds by name

__all__ = [
    "CHECKS",
    "SELF_CHECK",
    "Check",
    "NotApplicable",
    "Outcome",
    "Subject",
    "Unmet",
    "check",
    "run_check",
    "run_checks",
    "select",
]

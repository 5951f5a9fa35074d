"""Evaluation: who plays, what is counted, intervals, comparison, and an evaluation on disk."""

from glmgym.evaluation.attempt import Attempt
from glmgym.evaluation.compare import Comparison, compare
from glmgym.evaluation.directory import (
    EvalTerms,
    EvaluationDirectory,
    open_directory,
    read_attempts,
    terms_of,
)
from glmgym.evaluation.evaluate import (
    EvalReport,
    collect_attempts,
    evaluate,
    evaluate_mixture,
    report,
    score,
    share_out,
    tasks_of,
)
from glmgym.evaluation.intervals import Estimate, PairedDifference, estimate, paired, wilson
from glmgym.evaluation.passk import pass_at_k, pass_hat_k
from glmgym.evaluation.player import MessagePlayer, Player, Policy, Reply, Speaker, TokenPlayer

__all__ = [
    "Attempt",
    "Comparison",
    "Estimate",
    "EvalReport",
    "EvalTerms",
    "EvaluationDirectory",
    "MessagePlayer",
    "PairedDifference",
    "Player",
    "Policy",
    "Reply",
    "Speaker",
    "TokenPlayer",
    "collect_attempts",
    "compare",
    "estimate",
    "evaluate",
    "evaluate_mixture",
    "open_directory",
    "paired",
    "pass_at_k",
    "pass_hat_k",
    "read_attempts",
    "report",
    "score",
    "share_out",
    "tasks_of",
    "terms_of",
    "wilson",
]

"""Reward components beyond the environment's own scorer: rules, anchors, generative judges, and how they are mixed."""

from glmgym.rewards.anchor import Anchor, AnchorSettings, overlap
from glmgym.rewards.component import Component, ComponentSettings, RewardMix
from glmgym.rewards.judge import Judge, JudgeRefused, JudgeSettings, Verdict, read_verdict
from glmgym.rewards.judge_server import Answer, serve_judge, verdict
from glmgym.rewards.rule import Rule, RuleSettings, rule
from glmgym.rewards.transcript import transcript

__all__ = [
    "Anchor",
    "AnchorSettings",
    "Answer",
    "Component",
    "ComponentSettings",
    "Judge",
    "JudgeRefused",
    "JudgeSettings",
    "RewardMix",
    "Rule",
    "RuleSettings",
    "Verdict",
    "overlap",
    "read_verdict",
    "rule",
    "serve_judge",
    "transcript",
    "verdict",
]

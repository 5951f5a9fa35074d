"""Engines that need no torch. The embedded torch engine lives in ``glmgym_trainers.engines``."""

from glmgym.engines.routed import RoutedEngine, route
from glmgym.engines.scripted import SCORING, Fault, Script, ScriptedEngine, script_logprobs

__all__ = ["SCORING", "Fault", "RoutedEngine", "Script", "ScriptedEngine", "route", "script_logprobs"]

"""Engines that need torch: the embedded continuous-batching engine for one machine."""

from glmgym_trainers.engines.torch_engine import TorchEngine

__all__ = ["TorchEngine"]

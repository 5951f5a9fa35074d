"""glmgym: agentic environments and long-horizon RL for GLM-family models. The public names, nothing heavy.

``glmgym.tool`` is the decorator; its module is imported as ``from glmgym.tool import ...``.
"""

import sys

from glmgym.env import Env, Opening, ScoreView, Step, Task
from glmgym.messages import Message, ToolCall, assistant, system, user
from glmgym.registry import register
from glmgym.sandbox import BoxSpec
from glmgym.tasks import procedural
from glmgym.tool import ToolError, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward

__all__ = [
    "BoxSpec",
    "Env",
    "Message",
    "Opening",
    "Reward",
    "ScoreView",
    "Step",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "assistant",
    "procedural",
    "register",
    "system",
    "tool",
    "user",
]

if "gymnasium" in sys.modules:  # so that gymnasium.make("glmgym/Terminal-v0") works after both are imported
    import glmgym.gym  # noqa: F401

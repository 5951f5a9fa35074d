"""Harbor task directories, the native task format: loaded strictly, played in boxes, graded out of reach."""

from glmgym_envs.harbor.env import HarborEnv
from glmgym_envs.harbor.suite import spec_of, task_directories, task_set
from glmgym_envs.harbor.task import HarborTask, load_task

__all__ = ["HarborEnv", "HarborTask", "load_task", "spec_of", "task_directories", "task_set"]

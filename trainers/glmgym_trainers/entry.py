"""What the command line finds by name: how to read a recipe, how to run it, and what a clean stop looks like."""

from __future__ import annotations

from glmgym_trainers.run import Interrupted
from glmgym_trainers.stages import load, run

TRAIN = (run, load, Interrupted)

"""What the command line finds by name: how to read a recipe, how to run it, and what a clean stop looks like."""

from __future__ import annotations

from glmgym_trainers.recipe import load_recipe
from glmgym_trainers.run import Interrupted, train

TRAIN = (train, load_recipe, Interrupted)

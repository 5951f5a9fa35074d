"""``glmgym inspect``: the list of a run's trajectories, or one of them token by token."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from glmgym.chat import Tokenizer, load_tokenizer
from glmgym.errors import ConfigError
from glmgym.store import TrajectoryStore, read_credit
from glmgym.viewer import render_run, render_trajectory


def show(console: Console, run: Path, id: str | None, *, tokens: bool, limit: int) -> None:
    """Print the view.

    Raises:
        ConfigError: the directory holds no run.
        StoreError: no such trajectory.
    """
    path = run / "trajectories" / "store.sqlite"
    if not path.is_file():
        raise ConfigError(f"{run} holds no trajectories (looked for {path}); give the directory of a run")
    store = TrajectoryStore.open(path, read_only=True)
    try:
        if id is None:
            console.print(render_run(store, limit=limit))
            console.print(f"One of them: glmgym inspect {run} ID", highlight=False)
        else:
            trajectory = store.get(id)
            row = next(row for row in store.summaries() if row.id == id)
            advantages = read_credit(path.parent, id, row.step)
            decode = tokenizer_of(run).decode
            console.print(render_trajectory(trajectory, decode, tokens=tokens, row=row, advantages=advantages))
    finally:
        store.close()


def tokenizer_of(run: Path) -> Tokenizer:
    """The tokenizer that a run or an evaluation keeps; of several the newest checkpoint's."""
    found = sorted([*run.glob("checkpoints/*/policy/tokenizer.json"), *run.glob("tokenizer.json")])
    if not found:
        raise ConfigError(f"{run} holds no tokenizer.json; token ids cannot be shown as text")
    return load_tokenizer(found[-1].parent)

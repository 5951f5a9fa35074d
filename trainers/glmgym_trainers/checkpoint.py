"""Checkpoints of a run: one directory per saved step, appearing at once, holding everything a resume needs.

``RUN/checkpoints/step-000010/policy`` is a Hugging Face checkpoint; ``trainer.pt`` beside it holds the critic, the
optimisers and the counters.
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError

from glmgym.errors import ConfigError, GlmgymError
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import Policy, replace_directory, replace_text, save_policy
from glmgym_trainers.recipe import Recipe, dump_recipe

CONFIG_FILE = "config.toml"
FINISHED_FILE = "finished.json"
MAY_CHANGE = ("trainer.steps",)  # keys that a resumed run may have changed: how far to go


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    directory: Path

    @property
    def policy_dir(self) -> Path:
        return self.directory / "policy"

    def state(self) -> dict[str, Any]:
        """What ``Learner.load_state`` takes.

        Raises:
            GlmgymError: the file is missing or damaged.
        """
        path = self.directory / "trainer.pt"
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, EOFError, LookupError, RuntimeError, UnpicklingError) as error:  # as the damage may be
            raise GlmgymError(
                f"{path} cannot be read ({type(error).__name__}); remove {self.directory} "
                "and run again with --resume to go on from the checkpoint before it"
            ) from error


def check_directory(run: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a directory that cannot serve this run, without touching it; only ``MAY_CHANGE`` may differ on resume.

    Raises:
        ConfigError: it holds a run and ``resume`` is off, it holds none and ``resume`` is on, or the recipes differ.
    """
    written = run / CONFIG_FILE
    if not resume:
        if written.exists() or latest(run) is not None:
            raise ConfigError(f"{run} already holds a run; add --resume to go on with it, or give another --out")
        return
    if not written.is_file():
        raise ConfigError(f"{run} holds no run to resume; leave --resume out to start one")
    different = _differences(tomllib.loads(written.read_text()), dump_recipe(recipe))
    if forbidden := [f"{key} {change}" for key, change in different.items() if key not in MAY_CHANGE]:
        raise ConfigError(f"{run} was started with another recipe: {'; '.join(forbidden)}")


def prepare_directory(run: Path, recipe: Recipe, *, resume: bool) -> None:
    """Make the run directory, or note what a resumed run changes.

    Raises:
        ConfigError: see ``check_directory``; or the directory cannot be made.
    """
    check_directory(run, recipe, resume=resume)
    try:
        (run / "trajectories").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints").mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the run directory {run} cannot be made: {error}; give another --out") from error
    written, wanted = run / CONFIG_FILE, dump_recipe(recipe)
    if not written.exists() or _differences(tomllib.loads(written.read_text()), wanted):
        replace_text(written, tomli_w.dumps(wanted))


def mark_finished(run: Path, recipe: Recipe, step: int) -> None:
    """Note that the run has come to its end, evaluation included; the last thing a run writes."""
    replace_text(run / FINISHED_FILE, json.dumps({"step": step, "trainer.steps": recipe.trainer.steps}) + "\n")


def finished(run: Path, recipe: Recipe) -> Checkpoint | None:
    """The last checkpoint of a run that has come to the end which ``recipe`` asks for, or None.

    A run that was resumed to go further is unfinished from that moment on, even if it was killed before its next step.
    """
    marker, newest = run / FINISHED_FILE, latest(run)
    if newest is None or not marker.is_file():
        return None
    marked = json.loads(marker.read_text())
    return newest if marked == {"step": newest.step, "trainer.steps": recipe.trainer.steps} else None


def latest(run: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    found = sorted((run / "checkpoints").glob("step-*"))
    found = [path for path in found if path.suffix != ".partial"]
    return Checkpoint(int(found[-1].name.removeprefix("step-")), found[-1]) if found else None


def save(run: Path, learner: Learner, policy: Policy, *, keep: int) -> Path:
    """Write the learner's state as the checkpoint of its step and drop all but the newest ``keep``.

    Raises:
        GlmgymError: the disk is full or read-only; earlier checkpoints stay.
    """
    final = run / "checkpoints" / f"step-{learner.step_count:06d}"
    if final.is_dir():  # stopped again before the first update after a resume: this very state is there already
        return final
    partial = final.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "policy").mkdir(parents=True)
        save_policy(partial / "policy", learner.policy(), policy.speech, policy.files)
        state = io.BytesIO()  # torch's own file writer turns a full disk into a RuntimeError about positions
        torch.save(learner.state(), state)
        (partial / "trainer.pt").write_bytes(state.getvalue())
        replace_directory(partial, final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise GlmgymError(
            f"checkpoint {final} cannot be written: {error}; "
            "make room and run again with --resume: everything up to the previous checkpoint is kept"
        ) from error
    for old in sorted(path for path in (run / "checkpoints").glob("step-*") if path.suffix != ".partial")[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _differences(old: Any, new: Any, path: str = "") -> dict[str, str]:
    """What changed, by dotted key."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        parts = [_differences(old.get(key), new.get(key), f"{path}.{key}".lstrip(".")) for key in keys]
        return {key: change for part in parts for key, change in part.items()}
    return {} if old == new else {path: f"was {old!r}, now {new!r}"}

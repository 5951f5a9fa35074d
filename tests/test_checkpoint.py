"""A checkpoint is there whole or not at all, and a resumed run is the same run."""

from __future__ import annotations

import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_glm import tiny_glm
from transformers import AutoModelForCausalLM

from glmgym.errors import ConfigError, GlmgymError
from glmgym_trainers import checkpoint
from glmgym_trainers.algorithms import Sao, SaoSettings
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import Policy, load_policy
from glmgym_trainers.recipe import Recipe, load_recipe
from glmgym_trainers.settings import TrainerSettings


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The speech and tokenizer of the shipped policy, around a model small enough to save in milliseconds."""
    return replace(load_policy("quickstart"), model=tiny_glm())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpoint.prepare_directory(tmp_path / "run", _recipe(), resume=False)
    return tmp_path / "run"


def _recipe(**changes: Any) -> Recipe:
    return load_recipe("quickstart", {key.replace("__", "."): value for key, value in changes.items()})


def _learner(policy: Policy, step: int) -> Learner:
    learner = Learner(policy.model, Sao(SaoSettings()), TrainerSettings())
    learner.step_count = learner.version = step
    return learner


@contextmanager
def _files_up_to(num_bytes: int) -> Iterator[None]:
    """What a full disk looks like to a writer, without a disk of our own: longer files are refused by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_saved_is_read_back_by_us_and_by_transformers(run: Path, policy: Policy) -> None:
    learner = _learner(policy, 7)
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.bias.fill_(0.25)
    path = checkpoint.save(run, learner, policy, keep=2)
    found = checkpoint.latest(run)
    assert found == checkpoint.Checkpoint(7, path)
    assert path.name == "step-000007"
    weights = policy.model.state_dict()
    for model in (load_policy(found.policy_dir).model, AutoModelForCausalLM.from_pretrained(found.policy_dir)):
        assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    fresh = _learner(policy, 0)
    fresh.load_state(found.state())
    assert (fresh.step_count, fresh.version) == (7, 7)
    assert fresh.critic is not None
    assert fresh.critic.head.bias.item() == 0.25
    again = load_policy(found.policy_dir)
    assert (again.files, again.speech) == (policy.files, policy.speech)


def test_only_the_newest_are_kept_and_a_torn_one_does_not_count(run: Path, policy: Policy) -> None:
    assert checkpoint.latest(run) is None
    for step in (1, 2, 9, 10):
        checkpoint.save(run, _learner(policy, step), policy, keep=2)
    torn = run / "checkpoints" / "step-000011.partial"
    torn.mkdir()
    (torn / "trainer.pt").write_bytes(b"torn")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000009", "step-000010", torn.name]
    assert checkpoint.latest(run).step == 10  # type: ignore[union-attr]
    checkpoint.save(run, _learner(policy, 11), policy, keep=2)
    assert not torn.exists()
    assert checkpoint.latest(run).state()["step_count"] == 11  # type: ignore[union-attr]


def test_a_step_is_saved_once(run: Path, policy: Policy) -> None:
    """Writing it anew would first remove it: a kill in between would leave half a directory as the newest."""
    first = checkpoint.save(run, _learner(policy, 3), policy, keep=1)
    (first / "mark").touch()
    assert checkpoint.save(run, _learner(policy, 3), policy, keep=1) == first
    assert (first / "mark").exists()


@pytest.mark.parametrize("file", ["policy/config.json", "policy/model.safetensors", "trainer.pt"])
def test_a_full_disk_is_a_sentence_and_keeps_the_previous(run: Path, policy: Policy, file: str) -> None:
    """Each of the three writers of a checkpoint reports a full disk in its own way."""
    size = (checkpoint.save(run, _learner(policy, 1), policy, keep=1) / file).stat().st_size
    with _files_up_to(size - 1), pytest.raises(GlmgymError, match=r"step-000002 cannot be written: .* --resume"):
        checkpoint.save(run, _learner(policy, 2), policy, keep=1)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    checkpoint.save(run, _learner(policy, 2), policy, keep=1)
    assert checkpoint.latest(run).state()["version"] == 2  # type: ignore[union-attr]


def test_one_directory_holds_one_run(run: Path, policy: Policy) -> None:
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        checkpoint.prepare_directory(run, _recipe(), resume=False)
    with pytest.raises(ConfigError, match="holds no run to resume"):
        checkpoint.prepare_directory(run / "other", _recipe(), resume=True)
    assert not (run / "other").exists()
    checkpoint.save(run, _learner(policy, 1), policy, keep=1)
    (run / "config.toml").unlink()  # its checkpoints would be taken for the new run's
    with pytest.raises(ConfigError, match="already holds a run"):
        checkpoint.prepare_directory(run, _recipe(), resume=False)
    (run / "file").touch()
    with pytest.raises(ConfigError, match=r"file/below cannot be made: .* give another --out"):
        checkpoint.prepare_directory(run / "file" / "below", _recipe(), resume=False)


def test_a_resumed_run_may_go_further_and_change_nothing_else(run: Path) -> None:
    with pytest.raises(ConfigError) as error:
        checkpoint.prepare_directory(run, _recipe(trainer__lr=0.1, fleet__max_staleness=2, seed=0), resume=True)
    assert str(error.value).endswith(
        "was started with another recipe: fleet.max_staleness was 1, now 2; trainer.lr was 0.0004, now 0.1"
    )
    checkpoint.prepare_directory(run, _recipe(trainer__steps=31), resume=True)
    assert tomllib.loads((run / "config.toml").read_text())["trainer"]["steps"] == 31
    checkpoint.prepare_directory(run, _recipe(trainer__steps=31), resume=True)


def test_a_full_disk_does_not_cost_the_recipe(run: Path) -> None:
    """Without config.toml, whole, no later --resume could tell that it is the same run."""
    before = (run / "config.toml").read_text()
    with _files_up_to(20), pytest.raises(GlmgymError, match=r"config\.toml cannot be written: .*; make room"):
        checkpoint.prepare_directory(run, _recipe(trainer__steps=31), resume=True)
    assert (run / "config.toml").read_text() == before

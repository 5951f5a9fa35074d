"""Low-rank adapters: the base stays, the merged policy moves, and a resumed run is the same run bit for bit."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_glm import tiny_glm, trajectory
from tiny_models import MODELS
from torch import Tensor

from glmgym.errors import ConfigError
from glmgym_trainers import checkpoint
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import Sao, SaoSettings
from glmgym_trainers.batch import Row, collate
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import load_policy
from glmgym_trainers.settings import TrainerSettings, TuningSettings

BATCHES = [
    [trajectory(f"{step}{n}", ["ppaaoaaaa"], float(n % 2), seed=10 * step + n) for n in range(4)] for step in range(4)
]


def _learner(model: Any, **tuning: Any) -> Learner:
    torch.manual_seed(1)  # of the adapters
    settings = TuningSettings(**{"lora_rank": 2, **tuning})
    return Learner(model, Sao(SaoSettings(value_warmup=0)), TrainerSettings(lr=1e-2), tuning=settings)


def _base(model: Any) -> dict[str, Tensor]:
    """Every weight but the adapters', under the architecture's own names."""
    return {
        name.replace(".base_layer", ""): tensor.clone()
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }


def _same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_moves_the_merged_policy_and_not_the_base(name: str) -> None:
    model = MODELS[name]()
    start = copy.deepcopy(model.state_dict())
    learner = _learner(model)
    assert _same(learner.weights(), start)  # adapters start at a product of 0
    learner.step(BATCHES[0])
    assert _same(_base(learner.actor.model), start)
    moved = {name for name, tensor in learner.weights().items() if not torch.equal(tensor, start[name])}
    assert moved
    assert all(("self_attn" in name or "mlp" in name) and "_proj" in name for name in moved)
    assert not [name for name in moved if "indexer" in name]


def test_the_merged_weights_are_base_plus_scaled_product() -> None:
    """W + alpha / rank * B A, by hand, and no other layer: only the targets have adapters."""
    learner = _learner(tiny_glm(), lora_rank=3, lora_alpha=6, lora_targets=("q_proj",))
    learner.step(BATCHES[0])
    layer = learner.actor.model.model.layers[1].self_attn.q_proj
    by_hand = layer.base_layer.weight + 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(learner.weights()["model.layers.1.self_attn.q_proj.weight"], by_hand)
    trained = [name for name, parameter in learner.actor.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4  # A and B of two layers
    assert all("q_proj.lora_" in name for name in trained)


def test_engine_and_actor_agree_after_a_step() -> None:
    """The engine runs the merged weights, the actor base and adapters apart: the same log-probs."""
    learner = _learner(tiny_glm())
    learner.step(BATCHES[0])
    batch = collate([Row.of(each, 0) for each in BATCHES[1]])
    torch.testing.assert_close(
        Actor(learner.policy()).logprobs(batch), learner.actor.logprobs(batch), atol=1e-5, rtol=0
    )
    assert learner.policy() is not learner.actor.model


def test_the_critic_is_what_it_is_without_adapters() -> None:
    with_adapters, without = _learner(tiny_glm()).critic, _learner(tiny_glm(), lora_rank=0).critic
    assert with_adapters is not None
    assert without is not None
    assert _same(with_adapters.state_dict(), without.state_dict())
    trained = [[n for n, p in critic.named_parameters() if p.requires_grad] for critic in (with_adapters, without)]
    assert trained[0] == trained[1]


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    """Two steps, a checkpoint, two steps; and the checkpoint read back from disk on the base, two steps."""
    policy = replace(load_policy("quickstart"), model=tiny_glm())
    learner = _learner(policy.model)
    for batch in BATCHES[:2]:
        learner.step(batch)
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path, learner, policy, keep=2)
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert _same(load_policy(saved.policy_dir).model.state_dict(), learner.weights())
    again = _learner(tiny_glm())
    again.load_state(saved.state())
    assert _same(again.weights(), learner.weights())
    for one in (learner, again):
        for batch in BATCHES[2:]:
            one.step(batch)
    assert _same(again.actor.model.state_dict(), learner.actor.model.state_dict())
    assert _same(again.weights(), learner.weights())


def test_without_adapters_the_policy_is_the_model_itself() -> None:
    model = tiny_glm()
    learner = _learner(model, lora_rank=0)
    assert learner.policy() is model
    assert learner.state()["adapters"] == {}


def test_targets_that_are_not_there_and_a_missing_library_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"lora_targets: 'attnetion' is in no linear layer; .* 'model\.layers\.0"):
        _learner(tiny_glm(), lora_targets=("mlp", "attnetion"))
    with pytest.raises(ConfigError, match="'indexer' is in no linear layer"):  # it never trains
        _learner(MODELS["glm_moe_dsa"](), lora_targets=("indexer",))
    monkeypatch.setitem(sys.modules, "peft", None)  # what the import system notes for a module that cannot be imported
    with pytest.raises(ConfigError, match=r"lora_rank=2 needs peft: pip install 'glmgym\[lora\]'"):
        _learner(tiny_glm())

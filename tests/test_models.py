"""The trainers on each GLM architecture: dense GLM-4, GLM-4.5's experts, GLM-5's sparse attention."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_glm import VOCAB, trajectory
from tiny_models import INDEX_TOPK, MODELS, tiny_glm_moe_dsa

from glmgym.errors import ConfigError
from glmgym.trajectory import Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.batch import Row, collate
from glmgym_trainers.critic import Critic, score_prefixes
from glmgym_trainers.learner import Learner
from glmgym_trainers.policy import load_policy, resolve, save_policy
from glmgym_trainers.settings import TrainerSettings, TuningSettings
from glmgym_trainers.sparse_attention import StableIndexer, stable_topk

TRAJECTORIES = [trajectory("long", ["ppaaoaaapaaaaoaaa"], seed=1), trajectory("short", ["ppaaaaa"], seed=2)]
ROWS = [Row.of(each, 0) for each in TRAJECTORIES]
WITHOUT_TEACHER = sorted(name for name, kind in ALGORITHMS.items() if not kind.uses_teacher)


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def _groups() -> list[Trajectory]:
    """Two groups of two attempts, one of each succeeded."""
    return [
        replace(
            trajectory(f"t{group}{member}", ["ppaaoaaaa"], float(member), seed=2 * group + member), group_id=f"g{group}"
        )
        for group in (0, 1)
        for member in (0, 1)
    ]


def _learner(model: Any, name: str = "sao", *, tuning: TuningSettings | None = None, **settings: Any) -> Learner:
    kind = ALGORITHMS[name]
    known = {"group_size": 2, "value_warmup": 0, **settings}
    chosen = kind.Settings(**{key: value for key, value in known.items() if key in kind.Settings.model_fields})
    return Learner(model, kind(chosen), TrainerSettings(lr=1e-2), tuning=tuning)


def _moved(now: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in now.items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("name", WITHOUT_TEACHER)
def test_an_update_is_finite_and_moves_the_policy(model: Any, name: str) -> None:
    """Every algorithm on every architecture: experts move, the rest of the network too, and the indexer never."""
    before = copy.deepcopy(model.state_dict())
    learner = _learner(model, name)
    report = learner.step(_groups())
    assert math.isfinite(report.metrics["policy/loss"])
    assert report.metrics["optim/steps"] == 1.0
    moved = _moved(learner.weights(), before)
    assert "lm_head.weight" in moved
    assert any("mlp.experts" in name for name in moved) == any("mlp.experts" in name for name in before)
    assert not [name for name in moved if "indexer" in name]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_do_not_depend_on_the_batch(model: Any, temperature: float) -> None:
    """Against the full logits of each row alone, without padding: what another engine computes for the same tokens."""
    actor = Actor(model)
    batch = collate(ROWS, pad_to=30)
    got = actor.logprobs(batch, temperature)
    assert not got[~batch.trained_mask].any()
    for index, row in enumerate(ROWS):
        ids = torch.tensor(row.token_ids, dtype=torch.int64)
        full = (model(input_ids=ids[None], use_cache=False).logits[0] / temperature).log_softmax(-1)
        for p in np.flatnonzero(row.trained_mask):
            assert got[index, p].item() == pytest.approx(full[p - 1, ids[p]].item(), abs=2e-5)


def test_values_do_not_depend_on_the_batch(model: Any) -> None:
    critic = Critic(model)
    torch.nn.init.normal_(critic.head.weight)
    together = score_prefixes(critic, TRAJECTORIES, max_tokens=1000)
    for each in TRAJECTORIES:
        alone = score_prefixes(critic, [each], max_tokens=1000)[each.id, 0]
        np.testing.assert_allclose(together[each.id, 0], alone, atol=2e-5)


def test_the_critic_trains_projections_and_not_attention(model: Any) -> None:
    """SAO: attention frozen, the (expert) projections trained, on every architecture."""
    critic = Critic(model)
    trained = {name for name, parameter in critic.named_parameters() if parameter.requires_grad}
    assert not [name for name in trained if "self_attn." in name]
    assert {"head.weight", "backbone.layers.0.mlp.down_proj.weight"} <= trained
    experts = {name for name, _ in critic.named_parameters() if ".experts." in name}
    assert experts <= trained
    everything = Critic(model, freeze=())
    fixed = {name for name, parameter in everything.named_parameters() if not parameter.requires_grad}
    assert fixed == {name for name, _ in everything.named_parameters() if "indexer" in name}


def test_what_the_recipe_freezes_stays(model: Any) -> None:
    """Routers by pattern, whatever the learning rate; one that the architecture lacks is a mistake."""
    before = copy.deepcopy(model.state_dict())
    tuning = TuningSettings(freeze=("mlp.gate.", "embed_tokens"))
    if not any("mlp.gate." in name for name, _ in model.named_parameters()):
        with pytest.raises(ConfigError, match=r"freeze pattern 'mlp\.gate\.' matches no parameter"):
            _learner(model, tuning=tuning)
        return
    learner = _learner(model, tuning=tuning)
    learner.step(_groups())
    moved = _moved(learner.weights(), before)
    assert not [name for name in moved if "mlp.gate." in name or "embed_tokens" in name]
    assert [name for name in moved if "mlp.experts" in name]


def test_a_policy_of_each_architecture_survives_its_checkpoint(model: Any, tmp_path: Path) -> None:
    """Read back for a teacher or a resume: the same weights, and the same log-probs in another batch."""
    shipped = load_policy("quickstart")
    save_policy(tmp_path, model, shipped.speech, shipped.files)
    again = load_policy(tmp_path).model
    assert _moved(again.state_dict(), model.state_dict()) == set()
    ours = Actor(model).logprobs(collate(ROWS))
    torch.testing.assert_close(
        Actor(again).logprobs(collate(ROWS[1:], pad_to=40))[0, :7], ours[1, :7], atol=2e-5, rtol=0
    )


def test_sparse_attention_picks_the_same_keys_whatever_follows() -> None:
    """The indexer's choice for each token, alone and with 30 tokens of padding behind; ties at a score of 0 abound."""
    model = tiny_glm_moe_dsa()
    Actor(model)
    picked: list[torch.Tensor] = []
    indexers = [module for module in model.modules() if isinstance(module, StableIndexer)]
    assert len(indexers) == 2
    for indexer in indexers:
        indexer.register_forward_hook(lambda _module, _inputs, output: picked.append(output))
    ids = torch.randint(1, VOCAB, (1, 24), generator=torch.Generator().manual_seed(5))
    model(input_ids=ids, use_cache=False)
    model(input_ids=torch.nn.functional.pad(ids, (0, 30)), use_cache=False)
    for alone, padded in zip(picked[:2], picked[2:], strict=True):
        assert alone.dtype == torch.int32
        assert torch.equal(
            alone[0, INDEX_TOPK:], padded[0, INDEX_TOPK:24]
        )  # earlier tokens see fewer keys than it keeps


def test_the_critic_of_a_sparse_policy_picks_keys_as_the_policy_does() -> None:
    model = tiny_glm_moe_dsa()
    critic = Critic(model)
    assert sum(isinstance(module, StableIndexer) for module in critic.modules()) == 2


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=20), st.data())
def test_ties_go_to_the_earlier_key(scores: list[int], data: st.DataObject) -> None:
    """Against Python's sort of (score, place); -inf is a score like any other."""
    row = [float(score) if score > -2 else -math.inf for score in scores]
    k = data.draw(st.integers(1, len(row)))
    values, indices = stable_topk(torch.tensor(row), k)
    wanted = sorted(range(len(row)), key=lambda place: (-row[place], place))[:k]
    assert indices.tolist() == wanted
    assert values.tolist() == [row[place] for place in wanted]


def test_the_shipped_policy_is_one_of_them() -> None:
    assert load_policy(resolve("quickstart")).model.config.model_type in MODELS

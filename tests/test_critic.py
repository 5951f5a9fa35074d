"""Actor and critic on a real GLM-4 model: the one-token shift, what trains, and the parity check with the engine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_glm import tiny_glm, trajectory

from glmgym.errors import ConfigError
from glmgym_trainers.actor import Actor, ParityError, check_parity
from glmgym_trainers.batch import Row, collate
from glmgym_trainers.critic import Critic, score_prefixes
from glmgym_trainers.losses import value_loss
from glmgym_trainers.optim import NonFiniteGradient, StepResult, optimizer_step

TRAJECTORIES = [trajectory("long", ["ppaaoaa"], seed=1), trajectory("short", ["paa"], seed=2)]
ROWS = [Row.of(each, 0) for each in TRAJECTORIES]
BATCH = collate(ROWS)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_whole_model_one_position_earlier(temperature: float) -> None:
    """Specification 2.1, against full logits of each unpadded row; 0 where nothing was sampled."""
    model = tiny_glm()
    got = Actor(model).logprobs(BATCH, temperature)
    assert not got[~BATCH.trained_mask].any()
    for index, row in enumerate(ROWS):
        ids = torch.tensor(row.token_ids, dtype=torch.int64)
        full = (model(ids[None]).logits[0] / temperature).log_softmax(-1)
        for p in np.flatnonzero(row.trained_mask):
            assert got[index, p].item() == pytest.approx(full[p - 1, ids[p]].item(), abs=1e-5)


def test_entropy_is_that_of_the_same_distribution() -> None:
    model = tiny_glm()
    logprobs, entropy = Actor(model).logprobs_and_entropy(BATCH, 0.6)
    torch.testing.assert_close(logprobs, Actor(model).logprobs(BATCH, 0.6))
    ids = torch.tensor(ROWS[1].token_ids, dtype=torch.int64)
    full = (model(ids[None]).logits[0, 0] / 0.6).log_softmax(-1)
    assert entropy[1, 1].item() == pytest.approx(-(full.exp() * full).sum().item(), abs=1e-5)


def test_an_actor_survives_a_round_trip_through_its_checkpoint(tmp_path: Path) -> None:
    actor = Actor(tiny_glm())
    actor.save(tmp_path / "policy")
    torch.testing.assert_close(Actor.load(tmp_path / "policy").logprobs(BATCH), actor.logprobs(BATCH))
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        Actor.load(tmp_path / "nowhere")


def test_an_output_layer_with_a_bias_is_refused() -> None:
    model = tiny_glm()
    model.lm_head = torch.nn.Linear(32, 60, bias=True)
    with pytest.raises(ConfigError, match="without a bias"):
        Actor(model)


def headed_critic() -> Critic:
    """A critic whose head is not zero any more."""
    critic = Critic(tiny_glm())
    torch.manual_seed(3)
    torch.nn.init.normal_(critic.head.weight)
    return critic


def test_a_new_critic_says_zero_everywhere() -> None:
    assert not Critic(tiny_glm()).values(BATCH).any()


def test_a_value_knows_what_came_before_its_token_and_nothing_of_it() -> None:
    """Specification 2.1: changing token 4 leaves the values up to and including column 4, and moves column 5."""
    critic = headed_critic()
    before = critic.values(BATCH)
    changed = BATCH.token_ids.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 60
    after = critic.values(replace(BATCH, token_ids=changed))
    torch.testing.assert_close(after[0, :5], before[0, :5])
    assert (after[0, 5] - before[0, 5]).abs() > 1e-3


def test_scored_prefixes_are_one_longer_than_the_segment_and_independent_of_the_batch() -> None:
    """Entry p is the value of the first p tokens: entries 0 to T - 1 equal the columns, the last is the bootstrap."""
    critic = headed_critic()
    columns = critic.values(BATCH).detach()
    for max_tokens in (1, 1000):
        scores = score_prefixes(critic, TRAJECTORIES, max_tokens=max_tokens)
        assert scores["long", 0][:-1].tolist() == pytest.approx(columns[0].tolist(), abs=1e-5)
        assert scores["short", 0][:-1].tolist() == pytest.approx(columns[1, :3].tolist(), abs=1e-5)
    hidden = critic.backbone(input_ids=BATCH.token_ids[1:, :3]).last_hidden_state[0, -1]
    assert scores["short", 0][-1] == pytest.approx(critic.head(hidden).item(), abs=1e-5)


def test_attention_stays_fixed_the_rest_learns_and_the_policy_is_left_alone() -> None:
    """SAO: frozen attention by name pattern; three steps towards a return of 1 reduce the error."""
    model = tiny_glm()
    policy = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    critic = Critic(model)
    start = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    trained = [p for p in critic.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    losses = []
    for _ in range(3):
        loss, _ = value_loss(critic.values(BATCH), torch.ones(BATCH.returns.shape), BATCH.trained_mask, 1 / 6)
        loss.backward()
        optimizer_step(optimizer, trained, num_trusted=6, max_grad_norm=1.0)
        losses.append(loss.item())
    assert losses[0] == 1.0
    assert losses[2] < losses[1] < losses[0]
    moved = {name for name, tensor in critic.state_dict().items() if not torch.equal(tensor, start[name])}
    assert not [name for name in moved if "self_attn" in name and "post_self_attn" not in name]
    assert {"head.weight", "head.bias", "backbone.layers.0.mlp.down_proj.weight"} <= moved
    assert all(torch.equal(tensor, policy[name]) for name, tensor in model.state_dict().items())


def test_a_freeze_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'attnetion' matches no parameter"):
        Critic(tiny_glm(), freeze=("attnetion",))


def test_parity_passes_and_reports_when_engines_agree() -> None:
    """P5: differences 0.001 and 0.003 on the two sampled tokens; the third does not count."""
    mask = torch.tensor([[True, True, False]])
    parity = check_parity(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[-1.001, -2.003, 0.0]]), mask, bound=0.004)
    assert parity.num_tokens == 2
    assert (parity.mean_abs, parity.max_abs) == pytest.approx((0.002, 0.003), abs=1e-6)


def test_parity_refuses_and_names_the_worst_tokens() -> None:
    """P5: one token in three is off by half a nat; it is listed first, and only as many as asked for."""
    ours, theirs = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.5, -3.1])
    with pytest.raises(ParityError, match=r"up to 0\.5 nats") as error:
        check_parity(ours, theirs, torch.ones(3) > 0, bound=0.3, labels=["a", "b", "c"], num_worst=2)
    assert str(error.value).splitlines()[1:] == [
        "  b: rollout -2.5000, trainer -2.0000",
        "  c: rollout -3.1000, trainer -3.0000",
    ]


def test_parity_refuses_nan_and_an_empty_comparison() -> None:
    """P5: a NaN is not a small difference."""
    with pytest.raises(ParityError, match="token 1: rollout -2"):
        check_parity(torch.tensor([-1.0, math.nan]), torch.tensor([-1.0, -2.0]), torch.ones(2) > 0, bound=1.0)
    with pytest.raises(ValueError, match="at least one"):
        check_parity(torch.zeros(1), torch.zeros(1), torch.zeros(1) > 0, bound=1.0)


def stepped_adam() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """A weight at 1 minus one step, with momentum and decay that would move it again."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1)
    weight.grad = torch.tensor([1.0])
    optimizer_step(optimizer, [weight], num_trusted=1, max_grad_norm=10.0)
    return weight, optimizer


def test_nothing_trusted_skips_the_step_and_counts_it() -> None:
    """O3, invariant 9: Adam's momentum and decay do not move the weights either."""
    weight, optimizer = stepped_adam()
    before = weight.item()
    assert before < 1.0
    weight.grad = torch.tensor([0.0])
    result, metrics = optimizer_step(optimizer, [weight], num_trusted=0, max_grad_norm=1.0)
    assert result is StepResult.NOTHING_TRUSTED
    assert weight.item() == before
    assert weight.grad is None
    assert (metrics["optim/skipped_steps"].value, metrics["optim/steps"].value) == (1.0, 0.0)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    weight, optimizer = stepped_adam()
    before = weight.item()
    weight.grad = torch.tensor([math.nan])
    with pytest.raises(NonFiniteGradient, match="nan over 5 trusted tokens"):
        optimizer_step(optimizer, [weight], num_trusted=5, max_grad_norm=1.0)
    assert weight.item() == before


def test_the_gradient_is_clipped_to_the_norm_and_reported_unclipped() -> None:
    """(3, 4) has norm 5; clipped to 1 and with a rate of 1, plain descent moves by (0.6, 0.8)."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([3.0, 4.0])
    result, metrics = optimizer_step(optimizer, [weight], num_trusted=1, max_grad_norm=1.0)
    assert result is StepResult.STEPPED
    assert weight.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert metrics["optim/grad_norm_max"].value == pytest.approx(5.0)

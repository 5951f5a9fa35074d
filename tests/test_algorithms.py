"""SAO and group DIS: from trajectories to credit to a loss, with numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_glm import tiny_glm, trajectory

from glmgym.errors import ConfigError, GlmgymError
from glmgym.settings import parse_settings
from glmgym.trajectory import Failure, Outcome, Stop, Trajectory
from glmgym_trainers.actor import Actor
from glmgym_trainers.algorithms import ALGORITHMS, Dis, DisSettings, Extra, Forward, Sao, SaoSettings
from glmgym_trainers.batch import collate, rows_of
from glmgym_trainers.optim import StepResult, optimizer_step
from glmgym_trainers.reductions import weigh

SAO = Sao(SaoSettings())


def failed(id: str) -> Trajectory:
    return Trajectory(id, "task-0", "pictured-v0", (), Outcome(Stop.FAILED, failure=Failure("engine", "Dead", "gone")))


def values(id: str, *segments: list[float]) -> Extra:
    return Extra({(id, index): np.array(segment, np.float32) for index, segment in enumerate(segments)})


def test_sao_credits_a_trajectory_that_ends_in_an_observation() -> None:
    """5.5 through the whole algorithm: alpha 1.5 and 5 actions give lambda 13/15; the observation's values are NaN."""
    nan = math.nan
    extra = values("t", [nan, 0.2, 0.3, nan, nan, nan, 0.4, nan, nan, 0.5, 0.6, nan, nan])
    (credit,) = SAO.credit([trajectory("t", ["paaoooaooaao"])], extra)
    at = [1, 2, 6, 9, 10]
    expected = [0.5525412346, 0.522162963, 0.4871111111, 0.4466666667, 0.4]
    assert credit.advantages[at].tolist() == pytest.approx(expected, abs=1e-6)
    assert np.flatnonzero(credit.advantages).tolist() == at
    assert credit.returns[at].tolist() == pytest.approx([1.0] * 5)
    assert np.flatnonzero(credit.returns).tolist() == at


def test_sao_bridges_segments_like_observations() -> None:
    """Two segments of one and one action, reward 1, V = .2 then .6, lambda 1 - 1/3: A = .4 + 2/3 * .4 and .4."""
    extra = values("t", [0, 0.2, 9, 9], [0, 9, 0.6, 9])
    first, second = SAO.credit([trajectory("t", ["pao", "ppa"])], extra)
    assert first.advantages.tolist() == pytest.approx([0, 0.4 + 2 / 3 * 0.4, 0])
    assert second.advantages.tolist() == pytest.approx([0, 0, 0.4])
    assert (first.returns[1], second.returns[2]) == pytest.approx((1.0, 1.0))
    assert (first.segment_index, second.segment_index) == (0, 1)


@pytest.mark.parametrize(
    ("truncation", "stop", "reward", "expected"),
    [
        ("reward", Stop.MAX_TURNS, 1.0, 0.5),
        ("bootstrap", Stop.MAX_TURNS, 1.0, 1.2),
        ("bootstrap", Stop.CONTEXT_FULL, None, 0.2),
        ("bootstrap", Stop.DONE, 1.0, 0.5),
    ],
)
def test_sao_bootstraps_only_what_was_cut(truncation: str, stop: Stop, reward: float | None, expected: float) -> None:
    """One action of value 0.5; the final prefix is worth 0.7."""
    sao = Sao(parse_settings(SaoSettings, {"truncation": truncation}, where="test"))
    (credit,) = sao.credit([trajectory("t", ["pa"], reward, stop=stop)], values("t", [0, 0.5, 0.7]))
    assert credit.advantages[1] == pytest.approx(expected)


def test_sao_gives_no_credit_where_there_is_no_reward_or_no_action() -> None:
    """O5's kin: a failed trajectory is left out, it is not a reward of 0; an ungraded one is an error."""
    assert SAO.credit([failed("f"), trajectory("silent", ["ppp"])], Extra()) == []
    with pytest.raises(GlmgymError, match="never graded"):
        SAO.credit([trajectory("t", ["pa"], None)], values("t", [0, 0, 0]))
    with pytest.raises(GlmgymError, match="trajectory t segment 0 needs 3 prefix values, got none"):
        SAO.credit([trajectory("t", ["pa"])], Extra())


@pytest.mark.parametrize(
    ("baseline", "fill", "expected"),
    [
        ("originals", "repeat", {"a": [2 / 3] * 2, "b": [-1 / 3], "c": [-1 / 3]}),
        ("originals", "none", {"a": [2 / 3], "b": [-1 / 3], "c": [-1 / 3]}),
        ("filled", "repeat", {"a": [1 / 2] * 2, "b": [-1 / 2], "c": [-1 / 2]}),
    ],
)
def test_dis_fills_a_group_and_takes_the_baseline_from_the_named_list(
    baseline: str, fill: str, expected: dict[str, list[float]]
) -> None:
    """4.6: G=4, valid rewards 1, 0, 0: the baseline is 1/3 over the originals, 1/2 over the filled list."""
    dis = Dis(parse_settings(DisSettings, {"baseline": baseline, "fill": fill, "group_size": 4}, where="test"))
    group = [trajectory("a", ["pao"], 1.0), failed("x"), trajectory("b", ["pao"], 0.0), trajectory("c", ["pao"], 0.0)]
    got: dict[str, list[float]] = {}
    for credit in dis.credit(group, Extra()):
        assert credit.advantages[[0, 2]].tolist() == [0.0, 0.0]
        got[credit.trajectory_id] = [float(credit.advantages[1])] * credit.copies
    assert got == {name: pytest.approx(each) for name, each in expected.items()}


def test_dis_drops_a_group_of_which_half_failed() -> None:
    """O5: 2 of 4 is not more than half."""
    group = [trajectory("a", ["pa"], 1.0), failed("x"), trajectory("b", ["pa"], 0.0), failed("y")]
    assert Dis(DisSettings()).credit(group, Extra()) == []


def test_the_group_baseline_sees_rewards_not_segments() -> None:
    """O2: attempts of 1 and 4 segments with rewards 1 and 0: baseline 1/2, not 1/5; equal weight in the loss."""
    group = [trajectory("one", ["paaaa"], 1.0), trajectory("four", ["pa"] * 4, 0.0)]
    credits = Dis(DisSettings()).credit(group, Extra())
    assert [credit.advantages[1] for credit in credits] == [0.5, -0.5, -0.5, -0.5, -0.5]
    rows = rows_of(group, credits)
    batch = collate(weigh(rows, "token_mean"))
    logprobs = batch.rollout_logprobs.clone().requires_grad_()
    (grad,) = torch.autograd.grad(Dis(DisSettings()).loss(Forward(logprobs, logprobs.detach()), batch).loss, logprobs)
    assert grad[0].sum().item() == pytest.approx(-0.25)
    assert grad[1:].sum().item() == pytest.approx(0.25)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_batch_outside_the_band_leaves_the_policy_where_it_is(name: str) -> None:
    """O3, invariant 9, through a real model: stale log-probs 20 nats off; the step is skipped and counted."""
    algorithm = ALGORITHMS[name](ALGORITHMS[name].Settings())
    group = [trajectory("a", ["paa"], 1.0), trajectory("b", ["pa"], 0.0)]
    extra = Extra({(t.id, 0): np.zeros(len(t.segments[0]) + 1, np.float32) for t in group})
    rows = rows_of(group, algorithm.credit(group, extra))
    batch = collate(weigh(rows, "token_mean"))
    batch.rollout_logprobs.sub_(20.0)
    actor = Actor(tiny_glm())
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    logprobs = actor.logprobs(batch)
    out = algorithm.loss(Forward(logprobs, logprobs.detach()), batch)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in actor.parameters() if parameter.grad is not None)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=0.1)
    result, _ = optimizer_step(
        optimizer, actor.parameters(), num_trusted=int(out.sums["policy/trusted_fraction"]), max_grad_norm=1.0
    )
    assert result is StepResult.NOTHING_TRUSTED
    assert all(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))


def test_published_defaults() -> None:
    """5.2: the coding band, alpha, two critic updates, ten warm-up steps, frozen attention."""
    own = SaoSettings()
    assert (own.low, own.high, own.alpha, own.critic_lam, own.gamma) == (0.2, 4.0, 1.5, 1.0, 1.0)
    assert (SAO.critic_updates, SAO.value_warmup, SAO.freeze) == (2, 10, ("self_attn",))
    assert (SAO.uses_critic, Dis(DisSettings()).uses_critic) == (True, False)


@pytest.mark.parametrize(
    ("data", "message"),
    [({"hihg": 5.0}, "did you mean 'high'"), ({"low": 1.2}, "low"), ({"form": "live"}, "form")],
)
def test_bad_settings_are_refused_by_name(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(SaoSettings, data, where="[algorithm]")

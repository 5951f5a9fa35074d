"""SAO, group DIS, GRPO and CompactionRL: from trajectories to credit to a loss, with numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_glm import trajectory

from glmgym.errors import ConfigError, GlmgymError
from glmgym.settings import parse_settings
from glmgym.trajectory import Failure, Outcome, Stop, Trajectory
from glmgym_trainers.algorithms import (
    CompactionRl,
    CompactionRlSettings,
    DecoupledPpo,
    DecoupledPpoSettings,
    Dis,
    DisSettings,
    Extra,
    Forward,
    Grpo,
    GrpoSettings,
    Sao,
    SaoSettings,
)
from glmgym_trainers.batch import collate, rows_of
from glmgym_trainers.credit import has_signal
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
    dis = Dis(DisSettings(group_size=4))
    assert dis.credit(group, Extra()) == []
    assert dis.credit([group[0], group[2]], Extra()) == []  # the failed ones may be missing altogether
    whole = trajectory("c", ["pa"], 0.0)
    assert [credit.copies for credit in dis.credit([group[0], group[2], whole], Extra())] == [2, 1, 1]


def test_the_group_baseline_sees_rewards_not_segments() -> None:
    """O2: attempts of 1 and 4 segments with rewards 1 and 0: baseline 1/2, not 1/5; equal weight in the loss."""
    group = [trajectory("one", ["paaaa"], 1.0), trajectory("four", ["pa"] * 4, 0.0)]
    credits = Dis(DisSettings(group_size=2)).credit(group, Extra())
    assert [credit.advantages[1] for credit in credits] == [0.5, -0.5, -0.5, -0.5, -0.5]
    rows = rows_of(group, credits)
    batch = collate(weigh(rows, "token_mean"))
    logprobs = batch.rollout_logprobs.clone().requires_grad_()
    (grad,) = torch.autograd.grad(Dis(DisSettings()).loss(Forward(logprobs, logprobs.detach()), batch).loss, logprobs)
    assert grad[0].sum().item() == pytest.approx(-0.25)
    assert grad[1:].sum().item() == pytest.approx(0.25)


def test_grpo_divides_by_the_group_s_deviation() -> None:
    """3.4 through the algorithm: rewards 1, 0, 0, 0 in deviations of either kind; every token of every segment."""
    group = [trajectory("one", ["pa", "paoa"], 1.0), *(trajectory(f"zero{k}", ["pa"], 0.0) for k in range(3))]
    for own, expected in (({"eps": 0.0}, [1.5, -0.5]), ({"ddof": 0, "eps": 0.0}, [1.7320508, -0.5773503])):
        credits = Grpo(parse_settings(GrpoSettings, {"group_size": 2, **own}, where="test")).credit(group, Extra())
        assert credits[0].advantages.tolist() == pytest.approx([0, expected[0]])
        assert credits[1].advantages.tolist() == pytest.approx([0, expected[0], 0, expected[0]])
        assert [credit.advantages[1] for credit in credits[2:]] == pytest.approx([expected[1]] * 3)


def test_a_group_of_equal_rewards_has_credit_but_no_signal() -> None:
    """3.3: nothing to learn, and countable; a group of one is such a group."""
    grpo = Grpo(GrpoSettings(group_size=1))
    for rewards in ((0.3, 0.3, 0.3), (1.0,)):
        credits = grpo.credit([trajectory(f"t{k}", ["pa"], reward) for k, reward in enumerate(rewards)], Extra())
        assert len(credits) == len(rewards)
        assert not has_signal(credits)
    assert has_signal(grpo.credit([trajectory("a", ["pa"], 1.0), trajectory("b", ["pa"], 0.0)], Extra()))


@pytest.mark.parametrize(("overlong", "trained"), [("reward", [1, 1, 1]), ("mask", [1, 0, 1])])
def test_an_overlong_attempt_votes_whether_it_trains_or_not(overlong: str, trained: list[int]) -> None:
    """3.3: the baseline over 1, 0, 0 stays 1/3."""
    grpo = Grpo(parse_settings(GrpoSettings, {"overlong": overlong, "scale": "none", "group_size": 2}, where="test"))
    stops = (Stop.DONE, Stop.CONTEXT_FULL, Stop.DONE)
    rewards = (1.0, 0.0, 0.0)
    group = [trajectory(f"t{k}", ["pa"], r, stop=s) for k, (r, s) in enumerate(zip(rewards, stops, strict=True))]
    credits = grpo.credit(group, Extra())
    assert [credit.advantages[1] for credit in credits] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    trains = [credit.trained_mask is None or bool(credit.trained_mask.any()) for credit in credits]
    assert trains == [bool(each) for each in trained]
    assert len(rows_of(group, credits)) == sum(trained)


def test_a_failed_attempt_has_no_vote_in_a_group() -> None:
    """O5: rewards 1, 3, 2 and a failure: the baseline is 2, not 1.5."""
    grpo = Grpo(GrpoSettings(scale="none", fill="none", group_size=2))
    group = [trajectory("a", ["pa"], 1.0), trajectory("b", ["pa"], 3.0), failed("x"), trajectory("c", ["pa"], 2.0)]
    assert {c.trajectory_id: float(c.advantages[1]) for c in grpo.credit(group, Extra())} == {"a": -1, "b": 1, "c": 0}
    assert grpo.credit([failed("x"), failed("y")], Extra()) == []


def test_sao_may_count_the_tokens_of_the_response() -> None:
    """5.5: 5 actions among 10 response tokens: lambda 14/15 in place of 13/15. A carried prefix is no response."""
    nan = math.nan
    extra = values("t", [nan, 0.2, 0.3, nan, nan, nan, 0.4, nan, nan, 0.5, 0.6, 0])
    sao = Sao(SaoSettings(length="response"))
    (credit,) = sao.credit([trajectory("t", ["paaoooaooaa"])], extra)
    expected = [0.6652819753, 0.6056592593, 0.5417777778, 0.4733333333, 0.4]
    assert credit.advantages[[1, 2, 6, 9, 10]].tolist() == pytest.approx(expected, abs=1e-6)
    two = values("t", [0] * 4, [0] * 5)
    first, second = sao.credit([trajectory("t", ["pao", "pcca"])], two)  # 2 + 1 response tokens: lambda 7/9
    assert (first.advantages[1], second.advantages[3]) == pytest.approx((7 / 9, 1.0))


def test_the_critic_s_error_may_be_clipped() -> None:
    """11: old value .5, return 1, clip .2: .9 counts as .7; without it, as itself."""
    rows = rows_of([trajectory("t", ["pa"])], SAO.credit([trajectory("t", ["pa"])], values("t", [0, 0.5, 0])))
    batch = replace(collate(weigh(rows, "token_mean")), old_values=torch.tensor([[0.0, 0.5]]))
    new = torch.tensor([[7.0, 0.9]])
    for clip, expected in ((0.2, 0.09), (None, 0.01)):
        for algorithm in (Sao(SaoSettings(value_clip=clip)), CompactionRl(CompactionRlSettings(value_clip=clip))):
            assert algorithm.critic_loss(new, batch).loss.item() == pytest.approx(expected)


# Algorithm specification 6.6, the provenance example: an execution segment with its summary, and the one after it.
COMPACTED = ["pppppaaoooaaoooosss", "pppppcccccccaa"]


def compacted(**own: object) -> tuple[CompactionRl, Extra]:
    algorithm = CompactionRl(parse_settings(CompactionRlSettings, own, where="test"))
    return algorithm, values("t", [0.0] * (len(COMPACTED[0]) + 1), [0.0] * (len(COMPACTED[1]) + 1))


def test_every_sampled_token_of_a_compacted_rollout_trains_once() -> None:
    """6.6: |M| = 9: parts of 4, 3 and 2 tokens, followed by 5, 2 and 0; carried tokens are copies."""
    algorithm, extra = compacted()
    lam = 1 - 1 / (1.5 * 9)
    first, second = algorithm.credit([trajectory("t", COMPACTED)], extra)
    at = [5, 6, 10, 11, 16, 17, 18]
    assert np.flatnonzero(first.trained_mask).tolist() == at  # type: ignore[arg-type]
    assert np.flatnonzero(second.trained_mask).tolist() == [12, 13]  # type: ignore[arg-type]
    powers = [8, 7, 6, 5, 4, 3, 2]  # values of 0: the reward's distance is how many tokens come after
    assert first.advantages[at].tolist() == pytest.approx([lam**n for n in powers])
    assert second.advantages[[12, 13]].tolist() == pytest.approx([lam, 1])
    assert np.flatnonzero(first.returns).tolist() == at
    assert first.returns[at].tolist() == pytest.approx([1.0] * 7)


def test_summaries_left_out_leave_every_count() -> None:
    """6.5, an ablation: 6 tokens; 2 follow the first segment."""
    algorithm, extra = compacted(train_summary=False)
    lam = 1 - 1 / (1.5 * 6)
    group = [trajectory("t", COMPACTED)]
    first, second = algorithm.credit(group, extra)
    assert first.advantages[[5, 11, 16, 18]].tolist() == pytest.approx([lam**5, lam**2, 0, 0])
    rows = rows_of(group, [first, second])
    assert [row.num_trained for row in rows] == [4, 2]
    assert [row.weight for row in weigh(rows, algorithm.reduction)] == pytest.approx([1 / 6] * 2)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"cross_segment_factor": False}, [1, 1, 1]),
        ({"segment_reward_mode": "last_only"}, [0, 0, 1]),
    ],
)
def test_ablations_of_the_shared_reward(own: dict[str, object], expected: list[float]) -> None:
    """Advantages of the last token of the actions, of the summary, and of the end."""
    algorithm, extra = compacted(**own)
    first, second = algorithm.credit([trajectory("t", COMPACTED)], extra)
    assert [first.advantages[11], first.advantages[18], second.advantages[13]] == pytest.approx(expected)


def test_compaction_skips_what_has_nothing_to_train_and_needs_the_values_of_the_rest() -> None:
    """6.5: a segment without a sampled token; a failed trajectory; a silent one."""
    algorithm, _ = compacted()
    (credit,) = algorithm.credit(
        [trajectory("t", ["pa", "ppp"]), failed("f"), trajectory("s", ["p"])], values("t", [0, 0.5, 9])
    )
    assert (credit.segment_index, credit.advantages.tolist()) == (0, [0, 0.5])
    with pytest.raises(GlmgymError, match="trajectory t segment 1 needs 15 prefix values, got none"):
        algorithm.credit([trajectory("t", COMPACTED)], values("t", [0.0] * 20))


def test_more_compactions_do_not_weigh_more() -> None:
    """O2, the ablated bug of 6.5: 9 tokens in one segment, and 9 tokens in three."""
    rollouts = {"one": ["p" + "a" * 9], "three": ["paaa"] * 3}
    own = {name: trajectory(name, patterns) for name, patterns in rollouts.items()}
    extra = Extra({(n, k): np.zeros(len(s) + 1, np.float32) for n, t in own.items() for k, s in enumerate(t.segments)})
    algorithm, _ = compacted()
    rows = rows_of(own.values(), algorithm.credit(list(own.values()), extra))
    for reduction, share in (("token_mean", 0.5), ("rollout_mean", 0.5), ("seq_mean", 0.25)):
        weighed = weigh(rows, reduction)  # type: ignore[arg-type]
        assert sum(r.weight * r.num_trained for r in weighed if r.trajectory_id == "one") == pytest.approx(share)


@pytest.mark.parametrize(
    ("own", "expected", "uses_old"),
    [
        ({}, [1.2, 0.9], True),
        ({"old": "rollout"}, [1.2, 1.2], False),
        ({"objective": "dis"}, [2.6, 1.8], False),
    ],
)
def test_the_objective_of_compaction_is_named(own: dict[str, object], expected: list[float], uses_old: bool) -> None:
    """Current against old trainer 1.3 and .9, old against rollout 2: clipped at eps .2, or DIS, for advantage 1."""
    algorithm = CompactionRl(parse_settings(CompactionRlSettings, {**own, "form": "surrogate"}, where="test"))
    group = [trajectory("t", ["paa"])]
    rows = rows_of(group, algorithm.credit(group, values("t", [0.0] * 4)))
    batch = collate(weigh(rows, "token_mean"))
    batch.advantages.fill_(1.0)
    old = batch.rollout_logprobs + math.log(2)
    logprobs = old + torch.tensor([[0.0, math.log(1.3), math.log(0.9)]])
    assert algorithm.loss(Forward(logprobs, old), batch).loss.item() == pytest.approx(-sum(expected) / 2, rel=1e-5)
    assert algorithm.uses_old_logprobs == uses_old


def test_decoupled_ppo_may_guess_its_proximal_policy() -> None:
    """11: recorded at version 3, published 7, so 0.8 of the way to the current policy, 1.5 as likely as the sampler."""
    group = [trajectory("t", ["pa"], 1.0), trajectory("u", ["pa"], 0.0)]
    decoupled = DecoupledPpo(DecoupledPpoSettings(proximal="interpolated", scale="none", group_size=2))
    rows = rows_of(group, decoupled.credit(group, Extra()))
    batch = collate(weigh(rows, "token_mean"))
    logprobs = (batch.rollout_logprobs + math.log(1.5)).requires_grad_()
    out = decoupled.loss(Forward(logprobs, torch.full_like(logprobs, math.nan), version=7), batch)
    (grad,) = torch.autograd.grad(out.loss, logprobs)
    assert grad[:, 1].tolist() == pytest.approx([-1.5 * 0.5 / 2, 1.5 * 0.5 / 2], rel=1e-5)  # 1.5**.8 * 1.5**.2
    assert not decoupled.uses_old_logprobs


def test_published_defaults() -> None:
    """5.2, 3.1 and 6.2: the numbers of the papers."""
    own = SaoSettings()
    assert (own.low, own.high, own.alpha, own.critic_lam, own.gamma) == (0.2, 4.0, 1.5, 1.0, 1.0)
    assert (SAO.critic_updates, SAO.value_warmup, SAO.freeze) == (2, 10, ("self_attn",))
    assert (SAO.uses_critic, Dis(DisSettings()).uses_critic) == (True, False)
    grpo = GrpoSettings()
    assert (grpo.group_size, grpo.beta, grpo.eps_low, grpo.eps_high, grpo.scale) == (32, 2.0, 0.2, 0.28, "std")
    assert (grpo.reduction, grpo.weight_mode, DisSettings().scale) == ("seq_mean", "ratio", "none")
    compaction = CompactionRl(CompactionRlSettings())
    assert (compaction.value_warmup, compaction.critic_updates, compaction.reduction) == (50, 2, "token_mean")
    assert (compaction.settings.alpha, compaction.settings.eps_low, compaction.settings.eps_high) == (1.5, 0.2, 0.2)


@pytest.mark.parametrize(
    ("data", "message"),
    [({"hihg": 5.0}, "did you mean 'high'"), ({"low": 1.2}, "low"), ({"form": "live"}, "form")],
)
def test_bad_settings_are_refused_by_name(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(SaoSettings, data, where="[algorithm]")

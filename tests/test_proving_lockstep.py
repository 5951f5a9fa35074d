"""Rollouts in lockstep: their log-probs, who wrote which token, where they end, and what a compaction carries over."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from glmgym.trajectory import SegmentEnd, SpanKind
from glmgym_trainers.critic import FREEZE, Critic
from glmgym_trainers.proving.episode import Compaction, Episode, Reply
from glmgym_trainers.proving.games.collect import CollectRules
from glmgym_trainers.proving.games.hop import HopRules
from glmgym_trainers.proving.gpt import Decoder, Shape, TinyGpt
from glmgym_trainers.proving.lockstep import play
from glmgym_trainers.proving.practice import Dealer
from glmgym_trainers.proving.words import VOCABULARY, decode, encode

CUT = Compaction(context=40, reserve=22, max_compactions=4)
MIXED = (HopRules(), CollectRules(noise=(0, 5), spare=4))


@pytest.fixture(scope="module")
def model() -> TinyGpt:
    """Random weights, sharp enough that some words are much likelier than others."""
    torch.set_num_threads(1)
    gpt = TinyGpt(Shape(len(VOCABULARY)), seed=1)
    with torch.no_grad():
        gpt.base_model.embedding.weight.mul_(20.0)
    return gpt


class Scripted:
    """A game that answers each action with the next observation and ends after the last."""

    family = "scripted"
    max_action = 3

    def __init__(self, *observations: str) -> None:
        self.observations = list(observations)
        self.actions: list[str] = []

    def opening(self) -> list[int]:
        return encode("U follow f1 A")

    def reply(self, action: list[int]) -> Reply:
        self.actions.append(decode(action))
        if len(self.actions) > len(self.observations):
            return Reply(reward=1.0)
        return Reply(encode(self.observations[len(self.actions) - 1]))

    def demonstrate(self, random: Random) -> list[int]:
        raise NotImplementedError

    def demonstrate_summary(self, random: Random) -> list[int]:
        raise NotImplementedError


def say(episode: Episode, words: str) -> None:
    episode.queue.clear()
    for token in encode(words):
        episode.take(token, -0.5, version=7)


def test_the_policy_has_the_size_that_is_said() -> None:
    gpt = TinyGpt(Shape(len(VOCABULARY)))
    assert 80_000 < sum(parameter.numel() for parameter in gpt.parameters()) < 90_000


def test_decoding_gives_the_log_probs_of_the_full_forward(model: TinyGpt) -> None:
    """With rows that end at different times, contexts that grow past the first capacity, and compactions."""
    played = Dealer(MIXED, 0, CUT).rollouts(model, 48)
    assert max(len(segment) for each in played for segment in each.segments) > 30
    assert any(len(each.segments) > 2 for each in played)
    for each in played:
        for segment in each.segments:
            ids = torch.tensor(segment.token_ids.astype(np.int64))[None]
            with torch.no_grad():
                full = model(ids)[0].log_softmax(-1)
            mask = segment.sampled_mask
            at = np.flatnonzero(mask)
            expected = full[at - 1, segment.token_ids[at]].numpy()
            np.testing.assert_allclose(segment.logprobs[mask], expected, atol=1e-5)


def test_a_decoder_grows_and_keeps_rows(model: TinyGpt) -> None:
    ids = torch.randint(len(VOCABULARY), (3, 9), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(model, 3, capacity=4)
    for t in range(5):
        decoder.step(ids[:, t])
    decoder.keep([2, 0])
    for t in range(5, 9):
        logits = decoder.step(ids[[2, 0], t])
    torch.testing.assert_close(logits, model(ids)[[2, 0], -1].detach(), atol=1e-5, rtol=1e-5)


def test_no_token_sees_a_later_one(model: TinyGpt) -> None:
    ids = torch.randint(len(VOCABULARY), (1, 12), generator=torch.Generator().manual_seed(2))
    other = ids.clone()
    other[0, 8:] = 3
    one, two = model(ids)[0], model(other)[0]
    torch.testing.assert_close(one[:8], two[:8])
    assert not torch.allclose(one[8:], two[8:])


def test_the_critic_of_a_tiny_policy_freezes_its_attention(model: TinyGpt) -> None:
    critic = Critic(model, freeze=FREEZE)
    frozen = {name for name, parameter in critic.named_parameters() if not parameter.requires_grad}
    assert frozen
    assert all("self_attn" in name for name in frozen)


def test_nothing_is_sampled_after_the_end(model: TinyGpt) -> None:
    """A batch whose rows end at different times: each record ends with the action that ended it, sampled in order."""
    played = Dealer((HopRules(),), 3).rollouts(model, 64)
    assert len({len(each.segments[0]) for each in played}) >= 4
    for each in played:
        last = each.segments[-1].spans[-1]
        assert last.kind is SpanKind.ACTION
        assert each.segments[-1].ended_by is SegmentEnd.END


def test_a_reward_is_given_once() -> None:
    episode = Episode("e", Scripted())
    say(episode, "echo v1 END")
    assert episode.trajectory().outcome.total() == 1.0
    with pytest.raises(ValueError, match="it is over"):
        episode.take(1, -0.5, version=7)
    assert episode.trajectory().outcome.total() == 1.0


def test_a_token_may_not_come_while_others_are_forced() -> None:
    with pytest.raises(ValueError, match="others wait"):
        Episode("e", Scripted()).take(1, -0.5, version=7)


def test_every_taken_token_is_recorded_as_sampled_and_no_other(model: TinyGpt) -> None:
    """T7: the sampled tokens of the records are those that the policy was asked for, whatever was compacted."""
    taken = []

    class Counting(Episode):
        def take(self, token: int, logprob: float, *, version: int) -> None:
            taken.append(token)
            super().take(token, logprob, version=version)

    random = Random(9)
    episodes = [Counting(str(i), CollectRules(noise=(0, 5), spare=4).deal(random), CUT) for i in range(24)]
    played = play(model, episodes, seed=5, version=3)
    assert sum(each.num_sampled for each in played) == len(taken)
    sampled = [int(t) for each in played for s in each.segments for t in s.token_ids[s.sampled_mask]]
    assert sorted(sampled) == sorted(taken)
    assert {int(v) for each in played for s in each.segments for v in s.versions[s.sampled_mask]} == {3}


def test_the_same_seed_gives_the_same_rollouts(model: TinyGpt) -> None:
    def ids(seed: int) -> list[list[int]]:
        return [each.segments[0].token_ids.tolist() for each in Dealer((HopRules(),), seed).rollouts(model, 8)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_members_of_a_group_play_the_same_game_apart() -> None:
    first, second, third = Dealer((HopRules(),), 0).episodes(3, group_size=2)[:3]
    assert list(first.queue) == list(second.queue)
    assert list(second.queue) != list(third.queue)
    assert first.game is not second.game


def test_a_long_action_is_cut() -> None:
    game = Scripted("O n1 A")
    episode = Episode("e", game)
    say(episode, "cat cat cat")
    assert game.actions == ["cat cat cat"]
    assert decode(episode.queue) == "O n1 A"


@pytest.mark.parametrize(("noise", "compacts"), [(6, False), (7, True)])
def test_the_summary_is_asked_for_once_fewer_tokens_than_the_reserve_remain(noise: int, compacts: bool) -> None:
    """Opening 4, action 2, observation 2 + noise: 30 - 14 = 16 remain, which is not fewer than 16; 15 is."""
    episode = Episode("e", Scripted("O" + " n1" * noise + " A", "O A"), Compaction(context=30, reserve=16))
    say(episode, "cat END")
    assert episode.summarising is compacts
    assert (decode(episode.queue).split()[-1] == "SUM") is compacts


def test_what_a_compaction_carries_over() -> None:
    """Specification 6.5: the next context has the task, the summary and the last pair, and none of it is sampled."""
    cut = Compaction(context=20, reserve=12, keep_pairs=1, max_compactions=1, max_summary=4)
    episode = Episode("e", Scripted("O n1 A", "O n2 A", "O n3 A"), cut)
    say(episode, "cat END")  # 4 + 2 + 3 = 9 tokens: 11 remain
    assert episode.summarising
    say(episode, "k1 v2 END")
    assert episode.window_closed
    assert episode.next_window()
    assert decode(episode.queue) == "U follow f1 RESUME k1 v2 END A cat END O n1 A"
    say(episode, "wc END")  # the context is full again, but one compaction is all there may be
    say(episode, "grep END")
    say(episode, "echo END")
    assert not episode.next_window()
    first, second = episode.trajectory().segments
    kinds = [span.kind.value for span in first.spans]
    assert kinds == ["prompt", "action", "observation", "prompt", "summary"]
    assert first.ended_by is SegmentEnd.COMPACTED
    assert decode(first.token_ids[first.sampled_mask]) == "cat END k1 v2 END"
    assert decode(second.token_ids[second.sampled_mask]) == "wc END grep END echo END"
    assert [span.kind.value for span in second.spans[:5]] == ["prompt", "carried", "prompt", "carried", "observation"]


def test_a_summary_is_cut_at_its_limit() -> None:
    cut = Compaction(context=20, reserve=12, max_summary=2)
    episode = Episode("e", Scripted("O n1 A"), cut)
    say(episode, "cat END")
    say(episode, "k1 v2")
    assert episode.window_closed

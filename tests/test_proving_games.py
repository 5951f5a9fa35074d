"""The games: what solves them, what does not, and what a demonstrator who never errs does."""

from __future__ import annotations

from random import Random

import pytest

from glmgym.trajectory import Stop
from glmgym_trainers.proving.episode import Compaction, Game, GameRules, demonstration
from glmgym_trainers.proving.games.collect import CollectRules
from glmgym_trainers.proving.games.families import CountRules, FindRules
from glmgym_trainers.proving.games.hop import HopRules
from glmgym_trainers.proving.games.turning import TurningRules
from glmgym_trainers.proving.words import VOCABULARY, decode, encode

CLEAN: list[GameRules] = [
    HopRules(err=0.0),
    HopRules(err=0.0, spare=0, says_level=True),
    CollectRules(err=0.0, note=1.0, misnote=0.0),
    FindRules(err=0.0),
    CountRules(err=0.0),
]
CUT = Compaction(context=60, reserve=25, max_compactions=8)


def text(game: Game, action: str) -> str:
    reply = game.reply(encode(action))
    assert reply.reward is None
    return decode(reply.observation)


@pytest.mark.parametrize("rules", CLEAN, ids=repr)
def test_a_demonstrator_who_never_errs_succeeds(rules: GameRules) -> None:
    random = Random(3)
    for _ in range(40):
        compaction = CUT if isinstance(rules, CollectRules) else None
        assert demonstration(rules.deal(random), random, compaction).outcome.total() == 1.0


def test_the_demonstrator_of_turning_chooses_at_random() -> None:
    random = Random(0)
    rewards = [demonstration(TurningRules().deal(random), random).outcome.total() for _ in range(400)]
    assert 0.4 < sum(rewards) / 400 < 0.6


def test_demonstrators_err_as_often_as_they_are_told() -> None:
    """One hop and no spare turn: both actions must be right, or wrong by luck's sake."""
    random = Random(1)
    rules = HopRules(hops=(1, 1), spare=0, err=0.5)
    rewards = [demonstration(rules.deal(random), random).outcome.total() for _ in range(2000)]
    assert 0.22 < sum(rewards) / 2000 < 0.32  # 0.25, and lucky guesses


def test_a_chain_is_followed_to_its_code() -> None:
    game = HopRules(hops=(2, 2), noise=0).deal(Random(0))
    first = decode(game.opening()).split()[2]
    onward = text(game, f"cat {first} END").split()
    assert onward[:2] == ["O", "go"]
    end = text(game, f"cat {onward[2]} END").split()
    assert end[1] == "code"
    assert game.reply(encode(f"echo {end[2]} END")).reward == 1.0


@pytest.mark.parametrize(("spare", "turns"), [(0, 3), (1, 4)])
def test_the_last_turn_is_the_limit(spare: int, turns: int) -> None:
    game = HopRules(hops=(2, 2), spare=spare).deal(Random(0))
    for _ in range(turns - 1):
        assert game.reply(encode("go END")).reward is None
    last = game.reply(encode("go END"))
    assert (last.reward, last.stop) == (0.0, Stop.MAX_TURNS)


def test_an_answer_needs_the_words_of_its_family() -> None:
    words = ("echo", "say")
    for answer, expected in (("echo", 0.0), ("say", 1.0)):
        game = CountRules(answers=words, answer="say").deal(Random(4))
        said = text(game, f"wc {decode(game.opening()).split()[2]} END").split()
        value = said[said.index("lines") + 1]
        assert game.reply(encode(f"{answer} {value} END")).reward == expected


@pytest.mark.parametrize(("answer", "expected"), [("echo", 1.0), ("say", 0.0)])
def test_a_chain_may_insist_on_a_word_too(answer: str, expected: float) -> None:
    game = HopRules(hops=(1, 1), noise=0, answers=("echo", "say"), answer="echo").deal(Random(0))
    _, _, code, _ = text(game, f"cat {decode(game.opening()).split()[2]} END").split()
    assert game.reply(encode(f"{answer} {code} END")).reward == expected


def test_grep_names_two_files_of_which_one_holds_the_key() -> None:
    game = FindRules(noise=2).deal(Random(5))
    key = decode(game.opening()).split()[2]
    _, *files, _ = text(game, f"grep {key} END").split()
    texts = [text(game, f"cat {name} END") for name in files]
    assert sorted(key in said for said in texts) == [False, True]


def test_collect_cannot_be_answered_early_and_forgets_nothing() -> None:
    """The late value is in the last file alone, the early one in one of the first two."""
    rules = CollectRules(files=(5, 5), noise=(0, 0))
    for seed in range(20):
        game = rules.deal(Random(seed))
        _, name, _, wanted, _ = decode(game.opening()).split()
        seen = []
        for _ in range(5):
            said = text(game, f"cat {name} END").split()
            seen.append(said[1:3])
            name = said[4] if said[3] == "go" else ""
        at = [key for key, _ in seen].index(wanted)
        assert at < 2
        assert [key for key, _ in seen].count(wanted) == 1
        assert game.reply(encode(f"echo {seen[at][1]} {seen[-1][1]} END")).reward == 1.0


def test_the_choice_is_all_that_counts_in_turning() -> None:
    for seed in range(10):
        game = TurningRules(noise=1, later_turns=1).deal(Random(seed))
        _, side, left, right, _ = decode(game.opening()).split()
        choice = left if seed % 2 else right
        text(game, f"cat {choice} END")
        assert game.reply(encode("ok END")).reward == float((side == "left") == (choice == left))


def test_words_are_distinct_and_come_back() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    assert decode(encode(" ".join(VOCABULARY))) == " ".join(VOCABULARY)

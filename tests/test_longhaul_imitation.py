"""How the warm start ``base`` is made: what it practises, and what its heads look at before it has learned anything."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from glmgym.chat import Chat, load_tokenizer
from glmgym_trainers.policy import load_policy, resolve

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from warm_start import small_glm4
from warm_start_base import SKILLS, Skill, as_heard, demos, look_back, opening_of, recital

CHAT = Chat(load_tokenizer(resolve("base")), "glm47", thinking=False)


def test_two_heads_start_out_looking_at_the_tokens_before() -> None:
    """Whatever the tokens are, and as sharply at the end of a long context as at its start."""
    torch.manual_seed(0)
    model = small_glm4(CHAT)
    look_back(model)
    model.set_attn_implementation("eager")
    ids = torch.randint(0, CHAT.tokenizer.vocab_size, (1, 352))
    with torch.no_grad():
        attention = model.model(ids, output_attentions=True).attentions[0][0]
    for head, distance in enumerate((1, 2)):
        assert attention[head].diagonal(-distance).min() > 0.98
    assert attention[2].diagonal(-1).mean() < 0.1  # the other heads are left alone


@pytest.mark.parametrize("seed", range(5))
def test_a_recital_asks_for_what_stood_beside_a_word(seed: int) -> None:
    ids, imitated = recital(CHAT, random.Random(seed))
    note = len(ids) - 3 * sum(imitated)
    assert 8 <= sum(imitated) <= 12
    for at in (at for at, is_imitated in enumerate(imitated) if is_imitated):
        word, partner = ids[at - 1 : at + 1]
        assert {ids[i + 1] for i in range(note) if ids[i] == word} == {partner}


def test_a_malformed_call_is_answered_as_the_rollout_answers_it() -> None:
    skill = SKILLS[0]
    task = skill.suite.tasks.task("train", 0)
    opening = opening_of(skill, task)
    for seed in range(200):
        demo = skill.demonstrate(task, random.Random(seed), 0.5)
        heard = list(as_heard(CHAT, opening, demo))
        errors = [message.content for message in heard if message.content.startswith("error:")]
        assert len(heard) == len(demo)
        assert set(errors) <= {"error: unknown argument 'command' of 'shell'; did you mean 'cmd'?"}
        if errors:
            return
    pytest.fail("no malformed call in 200 noisy demonstrations")


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.suite.id)
def test_every_row_ends_with_an_imitated_turn_and_fits_the_policy(skill: Skill) -> None:
    for seed in range(20):
        task = skill.suite.tasks.task("train", seed)
        for ids, imitated in demos(CHAT, skill, task, random.Random(seed), 0.2):
            assert len(ids) == len(imitated) <= 384
            assert not imitated[0]
            assert imitated[-1]
            assert ids[-1] in CHAT.stop_ids


def test_the_shipped_policy_is_small_and_speaks_like_its_demonstrations() -> None:
    policy = load_policy("base")
    assert sum(parameter.numel() for parameter in policy.model.parameters()) <= 700_000
    assert policy.chat.tokenizer.vocab_size <= 768
    assert (resolve("base") / "model.safetensors").stat().st_size < 3 * 1024 * 1024
    assert (policy.speech.dialect, policy.speech.thinking) == ("glm47", False)

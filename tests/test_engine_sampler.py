"""The sampler draws from the distribution whose log-probs it reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from glmgym.errors import EngineFailure
from glmgym_trainers.engines.sampler import sample, uniform_draws

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]
LOGITS = torch.tensor([PROBABILITIES]).log() + 7.0  # a shift changes no probability


def draw(value: float, temperature: float = 1.0) -> tuple[int, float]:
    ids, logprobs = sample(LOGITS, torch.tensor([temperature]), torch.tensor([value], dtype=torch.float64))
    return int(ids), float(logprobs)


@pytest.mark.parametrize(
    ("value", "token_id"),
    [(0.0, 0), (0.499, 0), (0.501, 1), (0.799, 1), (0.801, 2), (0.949, 2), (0.951, 3), (1 - 1e-12, 3)],
)
def test_a_draw_picks_the_token_whose_share_it_falls_into(value: float, token_id: int) -> None:
    """Shares of [0, 1): 0.5, 0.3, 0.15, 0.05; the log-prob is that of the picked share."""
    picked, logprob = draw(value)
    assert picked == token_id
    assert logprob == pytest.approx(math.log(PROBABILITIES[token_id]), abs=1e-5)


def test_temperature_changes_the_shares_and_the_reported_logprob_alike() -> None:
    """P1, T=0.5: p squared, renormalised: .25/.365 = .684932, .09/.365 = .246575; the raw log 0.5 would be wrong."""
    assert draw(0.68, temperature=0.5) == (0, pytest.approx(math.log(0.25 / 0.365), abs=1e-5))
    assert draw(0.69, temperature=0.5) == (1, pytest.approx(math.log(0.09 / 0.365), abs=1e-5))


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, 5)
    ids, _ = sample(logits, torch.ones(4), torch.tensor([0.0, 0.499, 0.5, 1 - 1e-16], dtype=torch.float64))
    assert ids.tolist() == [1, 1, 3, 3]


def test_frequencies_follow_the_probabilities() -> None:
    n = 20_000
    ids, _ = sample(LOGITS.expand(n, 4), torch.ones(n), torch.from_numpy(uniform_draws(5, n)))
    np.testing.assert_allclose(np.bincount(ids, minlength=4) / n, PROBABILITIES, atol=0.01)


def test_draws_belong_to_the_seed_and_not_to_how_many_are_made() -> None:
    assert uniform_draws(3, 100)[:7].tolist() == uniform_draws(3, 7).tolist()
    assert uniform_draws(3, 7).tolist() != uniform_draws(4, 7).tolist()
    assert len(uniform_draws(-1, 2)) == 2


def test_logits_that_are_not_numbers_are_an_engine_failure() -> None:
    with pytest.raises(EngineFailure, match="not finite"):
        sample(torch.full((1, 4), torch.nan), torch.ones(1), torch.zeros(1, dtype=torch.float64))

"""Settings: frozen, strict, and clear about each mistake at once."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError, field_validator

from glmgym.engine import SamplingSettings
from glmgym.errors import ConfigError
from glmgym.settings import Settings, parse_settings


class Inner(Settings):
    low: float = 0.2
    high: float = Field(default=4.0, gt=1.0)


class Other(Settings):
    gamma: float = 1.0


class Recipe(Settings):
    steps: int
    name: str = "x"
    inner: Inner = Inner()
    maybe: Inner | None = None
    either: Inner | Other = Other()
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _lower(cls, value: str) -> str:
        if value != value.lower():
            raise ValueError("must be lower case")
        return value


def message(data: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_settings(Recipe, data, where="my.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"steps": 1, "stepps": 2}, "unknown key 'stepps'; did you mean 'steps'?"),
        ({"steps": 1, "inner": {"lo": 1}}, "unknown key 'inner.lo'; did you mean 'low'?"),
        ({"steps": 1, "maybe": {"hgh": 1}}, "unknown key 'maybe.hgh'; did you mean 'high'?"),
        ({"steps": 1, "many": [{}, {"hgh": 1}]}, "unknown key 'many.1.hgh'; did you mean 'high'?"),
        ({"steps": 1, "named": {"a": {"hgh": 1}}}, "unknown key 'named.a.hgh'; did you mean 'high'?"),
        ({"steps": 1, "inner": {"zzz": 1}}, "unknown key 'inner.zzz'; known: high, low"),
        ({}, "missing key 'steps'"),
        ({"steps": "many"}, "steps = 'many': Input should be a valid integer"),
        ({"steps": 1, "name": "X"}, "name = 'X': must be lower case"),
        ({"steps": 1, "inner": {"high": 1.0}}, "inner.high = 1.0: Input should be greater than 1"),
    ],
)
def test_a_mistake_names_the_place_the_key_and_what_to_do(data: dict[str, object], text: str) -> None:
    assert message(data).startswith(f"my.toml: {text}")


def test_a_union_offers_the_keys_of_each_branch() -> None:
    assert "unknown key 'either.Other.gama'; did you mean 'gamma'?" in message({"steps": 1, "either": {"gama": 1}})


def test_all_mistakes_are_said_at_once() -> None:
    assert message({"stepps": 1, "inner": {"lo": 1}}).count(";") == 4  # two between three problems, two hints


def test_settings_are_frozen() -> None:
    recipe = parse_settings(Recipe, {"steps": 3, "inner": {"low": 0.1}}, where="my.toml")
    assert (recipe.steps, recipe.inner.low, recipe.inner.high) == (3, 0.1, 4.0)
    with pytest.raises(ValidationError):
        recipe.steps = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value"),
    [("top_p", 0.95), ("top_p", 1.1), ("top_k", 1), ("top_k", -1), ("temperature", 0.0), ("temperature", -1.0),
     ("temperature", float("nan"))],
)  # fmt: skip
def test_p1_sampling_whose_logprobs_would_lie_is_refused(key: str, value: float) -> None:
    """P1: p = [.5, .3, .15, .05] cut at top_p .95 biases every log-prob by log .95 = -0.0513."""
    with pytest.raises(ConfigError, match=rf"recipe: {key} = .*: must be"):
        parse_settings(SamplingSettings, {key: value}, where="recipe")


def test_p1_the_whole_distribution_at_any_temperature_is_accepted() -> None:
    """P1: T != 1 is fine, since the engine reports log-probs of the distribution sampled from."""
    settings = parse_settings(SamplingSettings, {"temperature": 0.7, "top_p": 1.0, "top_k": 0}, where="recipe")
    assert settings.temperature == 0.7

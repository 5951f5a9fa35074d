"""A recipe that cannot work is refused when it is read, with the key, the reason and the nearest known name."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from glmgym.errors import ConfigError
from glmgym.registry import environment
from glmgym_trainers.algorithms import Dis, Sao
from glmgym_trainers.recipe import RECIPES, Recipe, dump_recipe, load_recipe, parse_recipe
from glmgym_trainers.stages import StagedRecipe, load

ROOT = Path(__file__).parents[1]


def _parse(**tables: Any) -> Recipe:
    return parse_recipe({"env": {"id": "terminal-basics-v0"}, **tables}, where="mine.toml")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"trainr": {}}, "unknown key 'trainr'; did you mean 'trainer'?"),
        ({"trainer": {"stepz": 3}}, "unknown key 'trainer.stepz'; did you mean 'steps'?"),
        ({"fleet": {"max_stalenes": 3}}, "did you mean 'max_staleness'?"),
        ({"algorithm": {"name": "sao", "critic_update": 3}}, "did you mean 'critic_updates'?"),
        ({"algorithm": {"name": "soa"}}, "unknown algorithm 'soa'; did you mean 'sao'?"),
        ({"algorithm": {"low": 1.5}}, "low"),
        ({"trainer": {"batch_size": 0}}, "must be at least 1"),
        ({"trainer": {"lr": -1.0}}, "trainer.lr"),
        ({"trainer": {"lr": float("nan")}}, "trainer.lr"),
        ({"trainer": {"betas": (0.9, 1.0)}}, "trainer.betas = (0.9, 1.0): each must lie in [0, 1)"),
        ({"trainer": {"weight_decay": -0.1}}, "trainer.weight_decay = -0.1: must be at least 0"),
        ({"trainer": {"steps": 2.5}}, "trainer.steps"),
        ({"seed": -1}, "seed"),
        ({"trainer": 3}, "trainer"),
        ({"algorithm": "sao"}, "algorithm = 'sao': must be a table, as in algorithm.name = 'sao'"),
        ({"policy": {"context_length": 0}}, "policy.context_length"),
        ({"policy": {"lora_rank": -1}}, "policy.lora_rank"),
        ({"policy": {"lora_alpha": 0}}, "policy.lora_alpha"),
        ({"policy": {"frozen": ["embed"]}}, "unknown key 'policy.frozen'; did you mean 'freeze'?"),
        ({"eval": {"episodes": -1}}, "eval.episodes"),
        ({"fleet": {"max_live": 0}}, "fleet.max_live"),
        ({"algorithm": {"name": "dis", "group_size": 5}, "trainer": {"batch_size": 64}}, "not a multiple"),
    ],
)
def test_what_cannot_work_is_named(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml|unknown algorithm") as error:
        _parse(**tables)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"top_p": 0.95}, "a truncated nucleus biases every log-prob"),
        ({"top_k": 50}, "a top-k cut biases every log-prob"),
        ({"temperature": 0.0}, "greedy sampling has no log-probs to train on"),
        ({"temperature": math.inf}, "must be above 0 and finite"),
        ({"temperature": -1.0}, "greedy sampling has no log-probs to train on"),
    ],
)
def test_sampling_that_falsifies_log_probs_is_refused(table: dict[str, float], reason: str) -> None:
    """P1: at parse time, with the reason."""
    with pytest.raises(ConfigError, match=reason):
        _parse(sampling=table)


def test_the_shipped_recipe_reads_and_takes_typed_overrides() -> None:
    recipe = load_recipe("quickstart", {"trainer.steps": 3, "fleet.max_staleness": 2, "policy.init": "/tmp/x"})
    assert (recipe.trainer.steps, recipe.fleet.max_staleness, recipe.policy.init) == (3, 2, "/tmp/x")
    assert (recipe.env.id, recipe.algorithm_name, recipe.trainer.batch_size) == ("terminal-basics-v0", "sao", 64)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.toml")))
def test_every_shipped_recipe_is_one(name: str) -> None:
    """Its own keys are known, its environments registered; a comment at its top says what it is for."""
    recipe = load(name)
    for each in [stage.recipe for stage in recipe.stages] if isinstance(recipe, StagedRecipe) else [recipe]:
        assert all(environment(id) for id in each.env.shares)
        assert parse_recipe(dump_recipe(each), where="dump") == each
    assert (RECIPES / f"{name}.toml").read_text().startswith("# ")


def test_a_dumped_recipe_reads_back_the_same() -> None:
    for algorithm, kind in (({"name": "dis", "group_size": 4}, Dis), ({"alpha": 2.0}, Sao)):
        policy = {"freeze": ["embed_tokens"], "lora_rank": 4}
        recipe = _parse(algorithm=algorithm, seed=3, rollout={"max_turns": 4}, policy=policy)
        assert parse_recipe(dump_recipe(recipe), where="dump") == recipe
        assert isinstance(recipe.algorithm, kind.Settings)


def test_missing_files_and_broken_toml_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'quickstrt'; did you mean 'quickstart'\?"):
        load_recipe("quickstrt")
    with pytest.raises(ConfigError, match=r"there is no recipe file .*mine\.toml; recipes that ship .*quickstart"):
        load_recipe(tmp_path / "mine.toml")
    (tmp_path / "bad.toml").write_text("[env\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'[env]\nid = "caf\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml: not valid TOML: .*utf-8"):
        load_recipe(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match="'seed' is a value, not a table"):
        load_recipe("quickstart", {"seed.x": 1})


def test_the_page_of_keys_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("write_recipe_docs", ROOT / "scripts" / "write_recipe_docs.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "recipes.md").read_text() == script.render(), "run scripts/write_recipe_docs.py"

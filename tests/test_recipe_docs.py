"""The page of recipe keys, read as its reader would: what it says is a recipe, and that recipe is the defaults.

``test_recipe.py`` holds the page against ``scripts/write_recipe_docs.py``; nothing here uses the script.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from glmgym.settings import Settings
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.recipe import Recipe, parse_recipe

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
OFF = ", off without this table"
TABLES = re.findall(
    rf"^## \[(\w+)\](?: with name = (\"\w+\"))?(?:{OFF})?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
)


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Key, default and meaning of each row of a table, the two lines of its head left out."""
    for line in [line for line in text.splitlines() if line.startswith("|")][2:]:
        key, default, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
        yield key.strip("`"), default, meaning


def _toml(name: str) -> str:
    """A recipe that spells out every default on the page, with the algorithm ``name``."""
    lines = [f"seed = {re.findall(r'`seed` stands outside the tables: default `(.+?)`', PAGE)[0]}"]
    for table, algorithm, text in TABLES:
        if algorithm in ("", f'"{name}"') and f"## [{table}]{OFF}" not in PAGE:
            lines += [f"[{table}]", *([f"name = {algorithm}"] if algorithm else [])]
            defaults = {key: default for key, default, _ in _rows(text)}
            lines += [f"{key} = {default.strip('`')}" for key, default in defaults.items() if default.startswith("`")]
            lines += ['id = "mine-v0"'] if table == "env" else []
    toml = "\n".join(lines)
    # The one key that an algorithm with a teacher cannot do without.
    return toml.replace("\nroutes = {}", '\nroutes = {mine = "x"}') if ALGORITHMS[name].uses_teacher else toml


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_defaults_on_the_page_are_the_defaults(name: str) -> None:
    """Written out as TOML they parse, and give the same recipe as leaving every key out."""
    spelled_out = parse_recipe(tomllib.loads(_toml(name)), where="docs/recipes.md")
    teachers = {"teachers": {"routes": {"mine": "x"}}} if ALGORITHMS[name].uses_teacher else {}
    left_out = parse_recipe({"env": {"id": "mine-v0"}, "algorithm": {"name": name}, **teachers}, where="nothing")
    assert spelled_out == left_out


def test_every_key_is_on_the_page_with_a_meaning() -> None:
    listed = {(table, algorithm, key): meaning for table, algorithm, text in TABLES for key, _, meaning in _rows(text)}
    expected = {("algorithm", f'"{name}"', key) for name, kind in ALGORITHMS.items() for key in _keys(kind.Settings)}
    for table, field in Recipe.model_fields.items():
        if table not in ("seed", "algorithm"):
            kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not type(None)]
            expected |= {(table, "", key) for key in _keys(kinds[-1])}
    assert set(listed) == expected
    assert [key for key, meaning in listed.items() if not meaning.strip("; ")] == []


def test_published_numbers_are_the_published_ones() -> None:
    """SAO, section 4.1, coding: band 0.2 to 4.0, alpha 1.5, two critic updates per policy update, ten to warm up."""
    (text,) = [text for _, algorithm, text in TABLES if algorithm == '"sao"']
    defaults = {key: default.strip("`") for key, default, _ in _rows(text)}
    names = ("low", "high", "alpha", "critic_updates", "value_warmup", "freeze")
    assert [defaults[name] for name in names] == ["0.2", "4.0", "1.5", "2", "10", '["self_attn"]']


def _keys(model: type[Settings]) -> set[str]:
    return set(model.model_fields) - {"name"}

"""Writes ``docs/recipes.md`` from the settings models: every key of a recipe, its default and the comment beside it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from glmgym.settings import Settings
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.recipe import Recipe

OUT = Path(__file__).parents[1] / "docs" / "recipes.md"

HEAD = """# Recipes

A recipe is a TOML file of the tables below; `glmgym train RECIPE --set table.key=value` overrides a key. An unknown key
is an error that names the nearest known one. Defaults stand as you would write them in TOML; where it says none, leave
the key out. A whole recipe: `trainers/recipes/quickstart.toml`. `scripts/write_recipe_docs.py` writes this page."""


def render() -> str:
    """The whole page."""
    seed = _default(Recipe.model_fields["seed"])
    parts = [HEAD, f"`seed` stands outside the tables: default {seed}, the seed of everything random in the run."]
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings) and name != "algorithm":
            parts.append(_table(f"[{name}]", field.annotation))
    for name, algorithm in ALGORITHMS.items():
        parts.append(_table(f'[algorithm] with name = "{name}"', algorithm.Settings))
    return "\n\n".join(parts) + "\n"


def _table(title: str, model: type[Settings]) -> str:
    comments = _comments(model)
    lines = [f"## {title}", ""]
    bases = model.__mro__[1 : model.__mro__.index(Settings)]
    texts = [model.__doc__ or "", *((base.__doc__ or "").split(". ")[0].rstrip(".") + "." for base in bases)]
    if any(texts):
        lines += [" ".join(" ".join(texts).replace("``", "`").split()), ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if name != "name":  # an algorithm's, already in the title
            meaning = _choices(field) + comments.get(name, "")
            lines.append(f"| `{name}` | {_default(field)} | {meaning} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    # JSON's texts of these values are TOML's too; only null is not.
    return "none" if value is None else f"`{json.dumps(value)}`"


def _choices(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not Literal:
        return ""
    return " or ".join(f"`{json.dumps(choice)}`" for choice in get_args(field.annotation)) + "; "


def _comments(model: type[Settings]) -> dict[str, str]:
    """The comment at the end of each field's line, by field; a subclass's own comments win."""
    sources = [inspect.getsource(base) for base in reversed(model.__mro__) if issubclass(base, Settings)]
    found = [pair for source in sources for pair in re.findall(r"^    (\w+):[^\n#]*#\s*(.+)$", source, re.MULTILINE)]
    return {name: text.replace("|", "\\|") for name, text in found}


if __name__ == "__main__":
    OUT.write_text(render())

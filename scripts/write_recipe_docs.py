"""Writes ``docs/recipes.md`` from the settings models: every key of a recipe, its default and the comment beside it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from glmgym.settings import Settings
from glmgym_trainers.algorithms import ALGORITHMS
from glmgym_trainers.recipe import Recipe

OUT = Path(__file__).parents[1] / "docs" / "recipes.md"

HEAD = """# Recipes

A recipe is a TOML file of the tables below; `glmgym train RECIPE --set table.key=value` overrides a key. An unknown key
is an error that names the nearest known one. `scripts/write_recipe_docs.py` writes this page from the settings.
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    tables: dict[str, type[Settings]] = {}
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings) and name != "algorithm":
            tables[name] = field.annotation
    parts.append("`seed` stands outside the tables: default `0`, the seed of everything random in the run.")
    parts += [_table(f"[{name}]", model) for name, model in tables.items()]
    for name, algorithm in ALGORITHMS.items():
        title = f'[algorithm] with name = "{name}"'
        parts.append(_table(title, algorithm.Settings))
    return "\n\n".join(parts) + "\n"


def _table(title: str, model: type[Settings]) -> str:
    comments = _comments(model)
    lines = [f"## {title}", ""]
    if model.__doc__ and model.__doc__ != Settings.__doc__:
        lines += [" ".join(model.__doc__.split()), ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if name != "name":  # an algorithm's, already in the title
            lines.append(f"| `{name}` | {_default(field)} | {comments.get(name, '')} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else f"`{value!r}`".replace("|", "\\|")


def _comments(model: type[Settings]) -> dict[str, str]:
    """The comment at the end of each field's line, by field; a subclass's own comments win."""
    sources = [inspect.getsource(base) for base in reversed(model.__mro__) if issubclass(base, Settings)]
    found = [pair for source in sources for pair in re.findall(r"^    (\w+):[^\n#]*#\s*(.+)$", source, re.MULTILINE)]
    return {name: text.replace("|", "\\|") for name, text in found}


if __name__ == "__main__":
    OUT.write_text(render())

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

STAGES = """## Stages

A recipe may chain several runs, each from the final policy of an earlier one: one `[[stage]]` after the other, with a
`name` of small letters, digits, `-` and `_`, and any of the tables above. `trainers/recipes/staged.toml` is an example.

- A stage inherits the top-level tables key by key. An `algorithm` of another `name` starts from that algorithm's
  defaults instead.
- `policy.init` is the previous stage's policy unless the stage gives its own: a checkpoint, or `"stage:NAME"` of any
  earlier stage, so that several experts can branch off one warm-up. The top level's is where the first stage starts.
- `teachers.routes` may name earlier stages in the same way.
- `--set stage.NAME.table.key=value` overrides a key of one stage, `--set table.key=value` of all.
- Each stage is a run of its own in `OUT/01-NAME`, whose `config.toml` is an ordinary recipe with the paths filled in.
  All stages are read and checked before the first one starts. `--resume` skips the finished ones and goes on with the
  next. `OUT/stages.json` has the held-out success before and after each.

A warm-up is a stage with `algorithm.name = "imitation"`: the environment's oracle plays in real boxes, and the policy
learns its turns by cross-entropy. An oracle that does not get the whole reward is a failure of the environment."""


def render() -> str:
    """The whole page."""
    seed = _default(Recipe.model_fields["seed"])
    parts = [HEAD, f"`seed` stands outside the tables: default {seed}, the seed of everything random in the run."]
    for name, field in Recipe.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_table(kind)]
        if kinds and name != "algorithm":
            without = "" if field.annotation is kinds[0] else ", off without this table"
            parts.append(_table(f"[{name}]{without}", kinds[0]))
            parts += [_table(f"[[{name}.{key}]]", kind) for key, kind in _lists(kinds[0])]
    for name, algorithm in ALGORITHMS.items():
        parts.append(_table(f'[algorithm] with name = "{name}"', algorithm.Settings))
    parts.append(STAGES)
    return "\n\n".join(parts) + "\n"


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _lists(model: type[Settings]) -> list[tuple[str, type[Settings]]]:
    """The keys of a table under which tables of their own stand one after the other, and what those hold."""
    pairs = [(key, kind) for key, field in model.model_fields.items() for kind in get_args(field.annotation)]
    return [(key, kind) for key, kind in pairs if _is_table(kind)]


def _table(title: str, model: type[Settings]) -> str:
    comments = _comments(model)
    lines = [f"## {title}", ""]
    bases = model.__mro__[1 : model.__mro__.index(Settings)]
    texts = [model.__doc__ or "", *((base.__doc__ or "").split(". ")[0].rstrip(".") + "." for base in bases)]
    if any(texts):
        lines += [" ".join(" ".join(texts).replace("``", "`").split()), ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is not Literal or len(get_args(field.annotation)) > 1:  # else: in the title
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

"""A task directory in the native format, written whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from glmgym.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9][\w.+-]*")
HEADING = "#!/bin/bash\n# Written by glmgym import.\n"
# The end of a test.sh whose output is in $log. The interpreter is the image's, not one of the environment under test.
VERDICT = """\
for python in /usr/bin/python3 /usr/local/bin/python3 /opt/miniconda3/bin/python3 "$(command -v python3)"; do
    [ ! -x "$python" ] || break
done
"$python" -I /tests/verdicts.py "$log" /tests/rule.json /logs/verifier
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a task directory will hold. ``files`` are by path below it; those that end in ``.sh`` may be executed.

    ``trees`` are directories of this machine, copied to a path below it.
    """

    id: str
    instruction: str
    config: Mapping[str, Any]  # task.toml
    files: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, Path] = field(default_factory=dict)


def graded_by(rule: Mapping[str, Any]) -> dict[str, str]:
    """The files that ``VERDICT`` needs: how to read a log, and the rule; see ``verdicts.grade``."""
    verdicts = files("glmgym_envs.importers").joinpath("verdicts.py").read_text("utf-8")
    return {"tests/verdicts.py": verdicts, "tests/rule.json": json.dumps(rule, indent=1) + "\n"}


def write_draft(draft: Draft, out: Path, *, where: str) -> Path:
    """The new directory ``out/id``.

    Raises:
        ConfigError: the id is no name of a directory, or there is one of that name already.
    """
    if not _ID.fullmatch(draft.id):
        raise ConfigError(f"{where}: {draft.id!r} is no name for a task directory")
    target = out / draft.id
    if target.exists():
        raise ConfigError(f"{where}: {target} is there already; give another place, or remove it")
    partial = out / f".{draft.id}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for path, tree in draft.trees.items():
            shutil.copytree(tree, partial / path, symlinks=True, dirs_exist_ok=True)
        for path, text in {
            "instruction.md": draft.instruction,
            "task.toml": tomli_w.dumps(draft.config),
            **draft.files,
        }.items():
            file = partial / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
            file.chmod(0o755 if path.endswith(".sh") else 0o644)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target

"""``glmgym import``: tasks of another format as tasks of ours."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from glmgym.errors import ConfigError
from glmgym.registry import load_component

_MOST_SHOWN = 5  # paths


def import_tasks(
    console: Console, format: str, path: Path, out: Path, *, image: str = "", repositories: Path | None = None
) -> None:
    """Import and say what was written.

    Raises:
        ConfigError: no such format or path, or something in it cannot be taken; names the key.
    """
    importer = load_component("task_formats", format)
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    written = importer(path, out, image=image, repositories=repositories)
    for each in written[:_MOST_SHOWN]:
        console.print(str(each), markup=False, highlight=False, soft_wrap=True)
    if len(written) > _MOST_SHOWN:
        console.print(f"... and {len(written) - _MOST_SHOWN} more in {out}", markup=False, highlight=False)

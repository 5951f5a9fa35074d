"""The pages of a MiniWoB directory, as a list for the browser environment."""

from __future__ import annotations

import json
from pathlib import Path

from glmgym.errors import ConfigError

_START = b"core.startEpisode"  # what every task's page calls or is called by; an index page does not


def import_miniwob(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """The names of the task pages in ``source`` (``miniwob/html/miniwob``) as the JSON list ``out/pages.json``.

    Raises:
        ConfigError: there is no task page, or the file is there already.
    """
    if image or repositories is not None:
        raise ConfigError("miniwob writes a list of pages, which need no box: leave --image and --repositories out")
    pages = sorted(path.stem for path in source.glob("*.html") if _START in path.read_bytes())
    if not pages:
        raise ConfigError(f"{source} holds no MiniWoB task page (*.html that mentions {_START.decode()})")
    file = out / "pages.json"
    if file.exists():
        raise ConfigError(f"{file} is there already; give another place, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(pages, indent=1) + "\n", "utf-8")
    return [file]

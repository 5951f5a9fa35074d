"""Task formats of the field, imported as they are: ``glmgym import FORMAT PATH``.

An importer reads a source and writes tasks: directories of the native format, or questions and pages for the search
and browser environments. What a format asks for and no environment here gives is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from glmgym_envs.importers.browsecomp import import_browsecomp
from glmgym_envs.importers.miniwob import import_miniwob
from glmgym_envs.importers.r2e import import_r2e_gym
from glmgym_envs.importers.search_r1 import import_search_r1
from glmgym_envs.importers.swe import import_swe_bench, import_swe_gym, import_swe_smith
from glmgym_envs.importers.terminal_bench import import_terminal_bench

__all__ = [
    "IMPORTERS",
    "Importer",
    "import_browsecomp",
    "import_miniwob",
    "import_r2e_gym",
    "import_search_r1",
    "import_swe_bench",
    "import_swe_gym",
    "import_swe_smith",
    "import_terminal_bench",
]


class Importer(Protocol):
    """Writes the tasks of ``source`` below ``out`` and returns what it wrote.

    ``image`` stands in for the images that the tasks name; ``repositories`` is a directory of git repositories to take
    sources from instead of the images'.
    """

    def __call__(self, source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]: ...


IMPORTERS: Mapping[str, Importer] = {
    "terminal-bench": import_terminal_bench,
    "swe-bench": import_swe_bench,
    "swe-gym": import_swe_gym,
    "swe-smith": import_swe_smith,
    "r2e-gym": import_r2e_gym,
    "search-r1": import_search_r1,
    "browsecomp": import_browsecomp,
    "miniwob": import_miniwob,
}

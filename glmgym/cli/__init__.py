"""The command line: the composition root. It reads what the user typed, finds components by name and shows events."""

from __future__ import annotations

import sys

from glmgym.cli.app import app
from glmgym.errors import GlmgymError


def main() -> None:
    """Entry point of ``glmgym``: an expected error is one sentence on stderr and exit code 2."""
    try:
        app()
    except GlmgymError as error:
        from rich.console import Console

        Console(stderr=True, soft_wrap=True).print(f"glmgym: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)

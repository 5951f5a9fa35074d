"""The command line: the composition root. It reads what the user typed, finds components by name and shows events."""

from __future__ import annotations

import sys
from typing import NoReturn

from glmgym.cli.app import app
from glmgym.errors import GlmgymError


def main() -> None:
    """Entry point of ``glmgym``: an expected error is one sentence on stderr and exit code 2."""
    try:
        app()
    except GlmgymError as error:
        _refuse(error)
    except ExceptionGroup as group:  # an expected error of one of many concurrent episodes is still one sentence
        known = group.subgroup(GlmgymError)
        if known is None:
            raise
        _refuse(_first(known))


def _refuse(error: BaseException) -> NoReturn:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(f"glmgym: {error}", style="red", markup=False, highlight=False)
    sys.exit(2)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""The command line: the composition root. It reads what the user typed, finds components by name and shows events."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from typer import BadParameter

from glmgym.cli.app import app
from glmgym.errors import GlmgymError

# The parser's own errors, a mistyped command, option or value, share a base that typer does not name.
UsageError: type[Any] = BadParameter.__mro__[1]


def main() -> None:
    """Entry point of ``glmgym``: a mistake is one sentence on stderr and exit code 2, an interrupt exit code 130."""
    try:
        code = app(prog_name="glmgym", standalone_mode=False)
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "glmgym"
        _refuse(f"{error.format_message().rstrip('.')} (see {where} --help)")
    except GlmgymError as error:
        _refuse(error)
    except ExceptionGroup as group:  # an expected error of one of many concurrent episodes is still one sentence
        known = group.subgroup(GlmgymError)
        if known is None:
            raise
        _refuse(_first(known))
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{error.filename}: {error.strerror}")  # a path the user gave, or a full disk
    sys.exit(code)


def _refuse(error: BaseException | str) -> NoReturn:
    from rich.console import Console

    sentence = " ".join(str(error).split())
    Console(stderr=True, soft_wrap=True).print(f"glmgym: {sentence}", style="red", markup=False, highlight=False)
    sys.exit(2)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

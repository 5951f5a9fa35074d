"""Everything that can go wrong, drawn as one tree, and the one place where foreign exceptions are attributed.

Two families. A ``ConfigError`` (and its kin) is a mistake of the person at the keyboard: it stops the command with a
sentence. A ``BoundaryFailure`` is something that broke while a trajectory ran: it becomes a ``Failure`` record and
never a reward. Both sit under ``GlmgymError``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_MOST_LISTED = 20  # names in a hint


class GlmgymError(Exception):
    """Base of every error that glmgym raises on purpose."""


class ConfigError(GlmgymError):
    """A recipe, option or registration that cannot work; the message says what, where and what to do."""


class UnknownName(ConfigError):
    """A name nobody registered; the message offers the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, known)}")


class StoreError(GlmgymError):
    """The trajectory store cannot be read or written; nothing already committed is lost."""


class BoundaryFailure(GlmgymError):
    """Something broke while a trajectory ran. Subclasses name the origin; ``retryable``: a second try may help."""

    origin = "env"
    retryable = False


class SandboxFailure(BoundaryFailure):
    origin = "sandbox"
    retryable = True


class SandboxDead(SandboxFailure):
    """The box itself is gone (killed, out of memory, its files destroyed): no further call can succeed."""


class EngineFailure(BoundaryFailure):
    origin = "engine"
    retryable = True


class CaptureError(EngineFailure):
    """The engine's token ids, log-probs and versions do not fit together; such a turn must never be trained."""

    retryable = False


class EnvFailure(BoundaryFailure):
    origin = "env"


class ToolFailure(BoundaryFailure):
    origin = "tool"


class ScorerFailure(BoundaryFailure):
    origin = "scorer"


class JudgeFailure(BoundaryFailure):
    origin = "judge"
    retryable = True


class TimeoutFailure(BoundaryFailure):
    origin = "timeout"


@contextmanager
def boundary(kind: type[BoundaryFailure], doing: str) -> Iterator[None]:
    """Attribute whatever escapes from foreign code to ``kind``; an already attributed failure passes unchanged.

    Only ``Exception`` is attributed: cancellation and interrupts go through, and so does a ``ConfigError``, which is
    the user's to mend before the run goes on.

    Raises:
        BoundaryFailure: of class ``kind``, message ``"{doing}: {type}: {text}"``, the original as its cause.
    """
    try:
        yield
    except (BoundaryFailure, ConfigError):
        raise
    except Exception as error:  # this is the boundary
        raise kind(f"{doing}: {type(error).__name__}: {error}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or the list when nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"; known: {', '.join(names[:_MOST_LISTED])}{more}" if names else "; none is registered"

"""The error tree: what boundaries attribute, what passes through, and hints that name the nearest thing."""

from __future__ import annotations

import asyncio

import pytest

from glmgym import errors
from glmgym.errors import (
    BoundaryFailure,
    CaptureError,
    ConfigError,
    EngineFailure,
    EnvFailure,
    GlmgymError,
    SandboxDead,
    SandboxFailure,
    StoreError,
    UnknownName,
    boundary,
    did_you_mean,
)

FAILURES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BoundaryFailure)
]  # fmt: skip


@pytest.mark.parametrize("kind", FAILURES)
def test_a_foreign_error_is_attributed_with_its_cause(kind: type[BoundaryFailure]) -> None:
    with pytest.raises(kind, match=r"^open box: KeyError: 'image'$") as caught, boundary(kind, "open box"):
        raise KeyError("image")
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_attributed_failure_passes_unchanged() -> None:
    dead = SandboxDead("box 7")
    with pytest.raises(SandboxDead) as caught, boundary(EnvFailure, "step"), boundary(EngineFailure, "inside"):
        raise dead
    assert caught.value is dead
    assert caught.value.__cause__ is None


def test_a_mistake_of_the_user_stops_the_run_instead_of_failing_a_trajectory() -> None:
    with pytest.raises(UnknownName), boundary(EnvFailure, "step"):
        raise UnknownName("tool", "sh", ["shell"])


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_cancellation_and_interrupts_go_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind), boundary(EnvFailure, "step"):
        raise kind


def test_nothing_happens_when_nothing_breaks() -> None:
    with boundary(EnvFailure, "step"):
        value = 1
    assert value == 1


def test_origins_and_retries_are_data() -> None:
    """A dead box may be tried again in a new one; a turn that was captured wrongly may not (P4)."""
    origins = {"sandbox", "engine", "env", "tool", "scorer", "judge", "timeout"}
    assert {kind.origin for kind in FAILURES} == origins
    assert {kind.__name__ for kind in FAILURES if kind.retryable} == {
        "SandboxFailure", "SandboxDead", "EngineFailure", "JudgeFailure",
    }  # fmt: skip
    assert issubclass(CaptureError, EngineFailure)
    assert issubclass(SandboxDead, SandboxFailure)


def test_mistakes_of_the_user_and_failures_of_the_world_are_apart() -> None:
    assert issubclass(UnknownName, ConfigError)
    for kind in (ConfigError, StoreError):
        assert issubclass(kind, GlmgymError)
        assert not issubclass(kind, BoundaryFailure)


@pytest.mark.parametrize(
    ("name", "known", "tail"),
    [
        ("terminl-v0", ["terminal-v0", "search-v0"], "; did you mean 'terminal-v0'?"),
        ("zzz", ["b", "a"], "; known: a, b"),
        ("zzz", [], "; none is registered"),
        ("zzz", list(map(chr, range(65, 87))), f"; known: {', '.join(map(chr, range(65, 85)))} and 2 more"),
        ("a", {"a": 1, "b": 2}, "; did you mean 'a'?"),
    ],
)
def test_a_hint_names_the_nearest_or_all(name: str, known: list[str], tail: str) -> None:
    assert did_you_mean(name, known) == tail
    assert str(UnknownName("environment", name, known)) == f"unknown environment {name!r}{tail}"

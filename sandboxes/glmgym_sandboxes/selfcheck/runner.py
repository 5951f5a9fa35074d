"""Runs checks one after the other and says how each went. Owns verdicts; knows nothing of terminals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glmgym.errors import SandboxFailure, UnknownName, boundary
from glmgym.sandbox import SandboxProvider
from glmgym_sandboxes.selfcheck.check import Check, NotApplicable, Subject, Unmet

TIMEOUT_S = 120.0  # of one check; the slowest takes about 10 s

Verdict = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check went. A failed one has ``expected`` and ``seen``; one that does not apply has ``why``."""

    check: Check
    verdict: Verdict
    wall_s: float
    expected: str = ""
    seen: str = ""
    why: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON holds it; what does not belong to the verdict is left out."""
        check = self.check
        facts = {"name": check.name, "theme": check.theme, "says": check.says, "proves": list(check.proves)}
        told = {"expected": self.expected, "seen": self.seen, "why": self.why}
        return {
            **facts,
            "verdict": self.verdict,
            "wall_s": round(self.wall_s, 3),
            **{key: text for key, text in told.items() if text},
        }


async def run_checks(
    provider: SandboxProvider,
    checks: Sequence[Check],
    *,
    image: str = "",
    on_start: Callable[[Check], None] = lambda check: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the checks on boxes of ``provider``, each with boxes of its own."""
    outcomes = []
    for each in checks:
        on_start(each)
        outcomes.append(await run_check(provider, each, image=image))
        on_outcome(outcomes[-1])
    return outcomes


async def run_check(
    provider: SandboxProvider, check: Check, *, image: str = "", timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Run one check. Whatever the backend raises that the check did not expect fails it; so does taking too long."""
    subject = Subject(provider.open, image=image)
    began = time.monotonic()

    def outcome(verdict: Verdict, **said: str) -> Outcome:
        return Outcome(check, verdict, time.monotonic() - began, **said)

    try:
        with boundary(SandboxFailure, check.name):
            try:
                async with asyncio.timeout(timeout_s):
                    await check.body(subject)
            finally:
                await subject.close()
    except Unmet as unmet:
        return outcome("failed", expected=unmet.expected, seen=unmet.seen)
    except NotApplicable as reason:
        return outcome("not applicable", why=str(reason))
    except SandboxFailure as failure:
        if isinstance(failure.__cause__, TimeoutError):
            return outcome("failed", expected=f"an end within {timeout_s:g} s", seen="none")
        return outcome("failed", expected="no such error", seen=f"{type(failure).__name__}: {failure}")
    return outcome("passed")


def select(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    """The checks called by ``names``, each the name of a check or of a theme; all of them for no names.

    Raises:
        UnknownName: with the nearest known name.
    """
    known = {check.name for check in checks} | {check.theme for check in checks}
    for name in names:
        if name not in known:
            raise UnknownName("check", name, known)
    return [check for check in checks if not names or check.name in names or check.theme in names]

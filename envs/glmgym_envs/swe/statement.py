"""The problem statement of an injected bug: what was seen to go wrong and where, never which line was changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_SYMPTOMS = 3
_MAX_LINES = 4  # of a message
_MAX_CHARS = 160  # of a line
_ENTRY = re.compile(r"^(?P<file>\S+\.py):\d+: in (?P<name>\S+)$")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@dataclass(frozen=True, slots=True)
class Symptom:
    """One failed check: the statement of the test that failed, and what was said."""

    code: str
    message: str


def symptom_of(report: str) -> Symptom | None:
    """Read pytest's short traceback of a failed test; ``None`` if it does not say what was done."""
    code: list[str] = []
    message: list[str] = []
    entries = 0
    for line in report.split("\n"):
        if _ENTRY.match(line):
            entries += 1
        elif line.startswith("E  "):
            message.append(line[1:].strip() if not message else line[1:].removeprefix("   "))
        elif entries == 1 and line.startswith("    ") and not message:
            code.append(line[4:])
    if not code or not message:
        return None
    clipped = [_ADDRESS.sub("0x...", line)[:_MAX_CHARS].rstrip() for line in message[:_MAX_LINES]]
    return Symptom("\n".join(code[:_MAX_LINES]), "\n".join(clipped))


def state(*, package: str, version: str, file: str, function: str, symptoms: Sequence[Symptom], failing: int) -> str:
    """The statement of a mutation task.

    Args:
        function: dotted name of the function or method that misbehaves.
        failing: how many of the project's tests show it.
    """
    owner, _, method = function.rpartition(".")
    what = f"the method `{method}` of `{owner}`" if owner else f"the function `{function}`"
    lines = [f"{package} {version} has a defect: {what} in `{file}` does not do what it should.", ""]
    # The same line that fails for several values says less than several lines.
    seen = list({symptom.code: symptom for symptom in reversed(symptoms)}.values())[::-1][:MAX_SYMPTOMS]
    if seen:
        lines += ["This was seen:", ""]
    for symptom in seen:
        lines += [*(f"    {line}" for line in symptom.code.split("\n")), ""]
        lines += [f"      {line}" for line in symptom.message.split("\n")] + [""]
    checks = (
        "One check of the project fails because of it; it is"
        if failing == 1
        else (f"{failing} checks of the project fail because of it; they are")
    )
    lines += [f"{checks} not part of the repository you have. Find the cause in the source and repair it. "
              "Everything else has to work as it does now."]  # fmt: skip
    return "\n".join(lines)

"""``glmgym doctor``: what this machine can run, each finding a sentence that says what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import sqlite3
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

from glmgym.errors import GlmgymError
from glmgym.registry import component_names, environments, load_component
from glmgym.sandbox import SandboxProvider, probe


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Literal["ok", "missing", "optional"]
    text: str

    def plain(self) -> dict[str, Any]:
        return asdict(self)


async def examine() -> list[Finding]:
    """Look at everything a run needs."""
    return [
        Finding("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Finding("cpu", "ok", f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"),
        _sqlite(),
        *[await _backend(name) for name in component_names("sandboxes")],
        _extra("torch", "train", "training and the embedded engine", required=True),
        _extra("transformers", "train", "checkpoints", required=True),
        _extra("torch_npu", "npu", "Ascend NPU; glmgym has not been run on one yet", required=False),
        _environments(),
    ]


def _environments() -> Finding:
    count = Counter(f"{spec.suite}/*" if spec.suite else spec.id for spec in environments().values())
    names = (name if not name.endswith("/*") else f"{name} ({number})" for name, number in count.items())
    return Finding("environments", "ok", ", ".join(names) or "none registered")


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 35):
        return Finding("sqlite", "missing", f"{version} is too old; the store needs 3.35 or newer")
    return Finding("sqlite", "ok", version)


async def _backend(name: str) -> Finding:
    """Whether boxes of a backend start here: one is opened."""
    status: Literal["missing", "optional"] = "missing" if name == "bubblewrap" else "optional"  # it is the default
    try:
        provider: SandboxProvider = load_component("sandboxes", name)({"warm": 0})
    except GlmgymError as error:
        return Finding(name, status, str(error))
    problem = await probe(provider)
    note = provider.limits_note
    await provider.close()
    return Finding(name, status, problem) if problem else Finding(name, "ok", f"boxes start here. {note}".rstrip())


def _extra(module: str, extra: str, use: str, *, required: bool) -> Finding:
    if importlib.util.find_spec(module):
        return Finding(module, "ok", f"{version(module)}: {use}")
    status: Literal["missing", "optional"] = "missing" if required else "optional"
    return Finding(module, status, f"not installed: pip install 'glmgym[{extra}]' ({use})")

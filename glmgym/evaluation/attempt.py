"""``Attempt``: what an evaluation keeps of one attempt at one task, the same for every kind of policy. One JSON line.

Owned here: the record, and the digests that say which attempt it is. Tokens are not in it: a policy that samples them
leaves a trajectory beside it, which ``trajectory_id`` names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glmgym.env import Task
from glmgym.errors import StoreError
from glmgym.messages import Message, ToolCall, ToolSpec
from glmgym.registry import EnvSpec
from glmgym.rollout import Request, Transcript
from glmgym.trajectory import Failure, Outcome, Reward, Stop


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, graded or failed. ``replaced`` are the failures of earlier tries that were played again."""

    id: str  # "TASK/NUMBER", unique in an evaluation
    key: str  # digest of everything the result depends on
    task_id: str
    env_id: str
    number: int  # of the attempt at this task, from 0
    seed: int
    started_at: str  # ISO 8601, UTC
    wall_s: float
    transcript: Transcript
    family: str = ""
    domain: str = ""
    trajectory_id: str = ""  # in the store beside it; "" for a policy without tokens
    replaced: tuple[Failure, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return self.transcript.outcome

    @property
    def num_turns(self) -> int:
        return sum(message.role == "assistant" for message in self.transcript.messages)

    @property
    def num_sampled(self) -> int:
        return sum(request.sampled_tokens for request in self.transcript.requests)

    def to_line(self) -> str:
        """One line of ASCII, so that lone surrogates of undecodable output survive."""
        return json.dumps(asdict(self), allow_nan=False, ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Attempt:
        """The attempt that ``to_line`` wrote.

        Raises:
            StoreError: the line is none.
        """
        try:
            data = json.loads(line)
            transcript = _transcript(data.pop("transcript"))
            replaced = tuple(Failure(**each) for each in data.pop("replaced"))
            return cls(transcript=transcript, replaced=replaced, **data)
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"not the line of an attempt: {error}: {line[:80]!r}") from error


def task_digest(task: Task) -> str:
    """sha256 of all that a task is."""
    return content_digest(asdict(task))


def content_digest(content: object) -> str:
    """sha256 of plain data, the same however its keys are ordered."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def code_version(spec: EnvSpec) -> str:
    """glmgym's version and a digest of the environment's code: the Python files in the directory it is defined in."""
    make: Callable[..., Any] = spec.make
    while isinstance(make, partial):
        make = make.func
    file = getattr(getattr(make, "__code__", None), "co_filename", None) or _file_of_module(make)
    sources = sorted(Path(file).parent.glob("*.py")) if file else []
    digest = content_digest({source.name: digest_file(source) for source in sources})
    return f"{version('glmgym')}+{digest[:16]}"


def digest_file(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def attempt_key(terms: Mapping[str, Any], task: Task, number: int) -> str:
    """Names one attempt by content: the terms of the evaluation (policy, sampling, harness), the task, its number."""
    return content_digest([terms, task_digest(task), number])


def _file_of_module(make: Callable[..., Any]) -> str | None:
    import sys

    module = sys.modules.get(getattr(make, "__module__", None) or type(make).__module__)
    return getattr(module, "__file__", None)


def _transcript(data: dict[str, Any]) -> Transcript:
    outcome = data["outcome"]
    return Transcript(
        messages=tuple(_message(each) for each in data["messages"]),
        tools=tuple(ToolSpec(**each) for each in data["tools"]),
        outcome=Outcome(
            Stop(outcome["stop"]),
            tuple(Reward(**reward) for reward in outcome["rewards"]),
            Failure(**outcome["failure"]) if outcome["failure"] else None,
        ),
        timings_s=data["timings_s"],
        requests=tuple(Request(**each) for each in data["requests"]),
        flags=data["flags"],
        image_digest=data["image_digest"],
    )


def _message(data: dict[str, Any]) -> Message:
    return Message(**{**data, "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"])})

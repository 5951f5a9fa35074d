"""The record of one trajectory: written once by the rollout, then frozen. Owned by the rollout; read by everyone.

A trajectory is segments, a segment is spans, a span is a run of tokens with one author. Loss masks are *derived* from
the span kind, so that they cannot disagree with the ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmgym.errors import BoundaryFailure, CaptureError, GlmgymError

NO_VERSION = -1  # version column of tokens that no policy sampled
ROUNDING_NATS = 1e-4  # how far a float32 log-softmax may round a certain token above 0


class SpanKind(StrEnum):
    PROMPT = "prompt"
    OBSERVATION = "observation"
    CARRIED = "carried"  # copied after a compaction or a fork; trained once, elsewhere
    ACTION = "action"
    SUMMARY = "summary"

    @property
    def is_sampled(self) -> bool:
        """True for kinds whose tokens the policy chose."""
        return self in (SpanKind.ACTION, SpanKind.SUMMARY)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A run of tokens with one author. Lengths agree or construction fails.

    ``logprobs`` are natural-log probabilities of the rollout engine at the moment of sampling; ``versions`` is the
    policy version that produced each token, since weights may change in the middle of a generation. Both are ``None``
    for unsampled kinds. The arrays are made read-only.

    Raises:
        CaptureError: lengths disagree, an id or version is no int32, an id is negative, a log-prob is positive or not a
            number, a version is negative or goes backwards.
    """

    kind: SpanKind
    token_ids: NDArray[np.int32]  # [n]
    logprobs: NDArray[np.float32] | None = None  # [n] nats
    versions: NDArray[np.int32] | None = None  # [n]

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _frozen(self.token_ids, np.int32))
        n = len(self.token_ids)
        if n == 0:
            raise CaptureError(f"a {self.kind} span has no tokens")
        if int(self.token_ids.min()) < 0:
            raise CaptureError(f"a {self.kind} span holds a negative token id")
        if not self.kind.is_sampled:
            if self.logprobs is not None or self.versions is not None:
                raise CaptureError(f"a {self.kind} span carries log-probs or versions, but nobody sampled it")
            return
        if self.logprobs is None or self.versions is None:
            raise CaptureError(f"a {self.kind} span needs log-probs and versions for its {n} tokens")
        object.__setattr__(self, "logprobs", _frozen(self.logprobs, np.float32))
        object.__setattr__(self, "versions", _frozen(self.versions, np.int32))
        check_capture(self.token_ids, self.logprobs, self.versions)

    def __len__(self) -> int:
        return len(self.token_ids)


def check_capture(token_ids: NDArray[np.int32], logprobs: NDArray[np.float32], versions: NDArray[np.int32]) -> None:
    """Refuse ids, log-probs and versions that cannot be one sampled run.

    Raises:
        CaptureError: the counts differ, a log-prob is positive or NaN, a version is negative or goes backwards.
    """
    if not len(token_ids) == len(logprobs) == len(versions):
        raise CaptureError(
            f"{len(token_ids)} token ids came with {len(logprobs)} log-probs and {len(versions)} versions"
        )
    if len(token_ids) == 0:
        return
    if not np.isfinite(logprobs).all() or float(logprobs.max()) > ROUNDING_NATS:
        raise CaptureError("a sampled token has a log-prob that is positive or not finite")
    if int(versions.min()) < 0 or bool((np.diff(versions) < 0).any()):
        raise CaptureError("policy versions of a sampled run are negative or go backwards")


class SegmentEnd(StrEnum):
    COMPACTED = "compacted"
    FORKED = "forked"
    END = "end"


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One contiguous context: what the engine saw, as deltas. Starts with an unsampled span."""

    spans: tuple[Span, ...]
    ended_by: SegmentEnd = SegmentEnd.END

    def __post_init__(self) -> None:
        if not self.spans:
            raise CaptureError("a segment has no spans")
        if self.spans[0].kind.is_sampled:
            raise CaptureError("a segment starts with a sampled span; the engine must have seen a prompt first")

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[T] int32: the whole context."""
        return np.concatenate([span.token_ids for span in self.spans])

    @property
    def sampled_mask(self) -> NDArray[np.bool_]:
        """[T] bool: True where the policy sampled the token. Derived from the span kinds."""
        return np.concatenate([np.full(len(span), span.kind.is_sampled) for span in self.spans])

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[T] float32 nats: the rollout engine's value for sampled tokens, 0 elsewhere."""
        return np.concatenate([_or_fill(span.logprobs, len(span), 0.0, np.float32) for span in self.spans])

    @property
    def versions(self) -> NDArray[np.int32]:
        """[T] int32: policy version of sampled tokens, ``NO_VERSION`` elsewhere."""
        return np.concatenate([_or_fill(span.versions, len(span), NO_VERSION, np.int32) for span in self.spans])

    @property
    def num_turns(self) -> int:
        return sum(span.kind is SpanKind.ACTION for span in self.spans)

    @property
    def num_sampled(self) -> int:
        return sum(len(span) for span in self.spans if span.kind.is_sampled)

    def __len__(self) -> int:
        return sum(len(span) for span in self.spans)


@dataclass(frozen=True, slots=True)
class Reward:
    """One named reward component. ``value`` is finite: a scorer that cannot tell raises instead.

    A component is either part of the task's outcome or ``shaping``: style, brevity, penalties. Both are trained; only
    the outcome says whether the task was done.
    """

    name: str
    value: float
    weight: float = 1.0
    source: str = "rule"  # rule, orm, judge
    version: str = ""
    reason: str = ""
    shaping: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.weight)):
            raise ValueError(f"reward {self.name!r} is not finite: value={self.value}, weight={self.weight}")
        # Scorers return numpy scalars and bools too; the record holds plain numbers.
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "weight", float(self.weight))


@dataclass(frozen=True, slots=True)
class Failure:
    """Something broke. Never a reward of 0: a failed trajectory has no reward."""

    origin: str  # sandbox, engine, env, tool, scorer, judge, timeout
    type: str
    message: str
    retryable: bool = False

    @classmethod
    def of(cls, error: BoundaryFailure) -> Failure:
        """The record of an attributed exception; the type is that of the exception it was raised from."""
        cause = error.__cause__ or error
        return cls(error.origin, type(cause).__name__, str(error), error.retryable)


class Stop(StrEnum):
    DONE = "done"
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"
    BUDGET = "budget"  # sampled tokens or wall time
    FAILED = "failed"

    @property
    def is_truncated(self) -> bool:
        """True when the episode was cut by a limit, so that its value may be bootstrapped."""
        return self in (Stop.MAX_TURNS, Stop.CONTEXT_FULL, Stop.BUDGET)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trajectory ended. ``failure`` is present exactly when ``stop`` is FAILED."""

    stop: Stop
    rewards: tuple[Reward, ...] = ()
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if (self.stop is Stop.FAILED) != (self.failure is not None):
            raise ValueError(f"stop={self.stop} and failure={self.failure} contradict each other")
        if self.failure is not None and self.rewards:
            raise ValueError("a failed outcome has no rewards")

    @property
    def is_valid(self) -> bool:
        """True when the reward may be used for training and scores."""
        return self.failure is None

    def total(self) -> float:
        """The weighted sum of the reward components.

        Raises:
            GlmgymError: the trajectory failed or was not graded; such an outcome has no reward, not a reward of 0.
        """
        return _weighted(self._graded())

    def result(self) -> float:
        """The task's outcome: the weighted sum without the shaping components.

        Raises:
            GlmgymError: as ``total``; or every component is shaping, so that nobody graded the task itself.
        """
        graded = self._graded()
        own = tuple(reward for reward in graded if not reward.shaping)
        if not own:
            names = ", ".join(reward.name for reward in graded)
            raise GlmgymError(f"every reward of this outcome is shaping ({names}): the task itself was not graded")
        return _weighted(own)

    def _graded(self) -> tuple[Reward, ...]:
        if self.failure is not None:
            raise GlmgymError(f"a failed trajectory has no reward ({self.failure.origin}: {self.failure.message})")
        if not self.rewards:
            raise GlmgymError("this outcome was never graded")
        return self.rewards


@dataclass(frozen=True, slots=True)
class Provenance:
    """What produced a trajectory: enough to tell later whether two records may be compared."""

    tokenizer_sha256: str = ""  # of the id -> bytes map
    template_sha256: str = ""  # of the dialect's rendering rules
    tools_sha256: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)  # includes "logprobs": "processed"
    engine: str = ""
    precision: str = ""  # "weights/kv/compute"
    env_version: str = ""
    image_digest: str = ""
    timings_s: Mapping[str, float] = field(default_factory=dict)
    compaction: Mapping[str, Any] = field(default_factory=dict)  # its settings; empty: a full context ended the episode
    management: Mapping[str, Any] = field(default_factory=dict)  # of the context; its settings, empty: none


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One attempt of one policy at one task, complete. ``id`` is unique in a store."""

    id: str
    task_id: str
    env_id: str
    segments: tuple[Segment, ...]
    outcome: Outcome
    provenance: Provenance = field(default_factory=Provenance)
    group_id: str = ""
    family: str = ""  # task family, for reports
    domain: str = ""  # teacher route
    final_answer: str = ""

    def __post_init__(self) -> None:
        if not self.segments and self.outcome.stop is not Stop.FAILED:
            raise CaptureError(f"trajectory {self.id} has no segments, yet it did not fail")

    @property
    def num_sampled(self) -> int:
        return sum(segment.num_sampled for segment in self.segments)

    @property
    def num_turns(self) -> int:
        return sum(segment.num_turns for segment in self.segments)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among the sampled tokens, ``NO_VERSION`` if there are none."""
        versions = [int(s.versions.min()) for seg in self.segments for s in seg.spans if s.versions is not None]
        return min(versions, default=NO_VERSION)


def _weighted(rewards: tuple[Reward, ...]) -> float:
    return sum(reward.weight * reward.value for reward in rewards)


def _frozen(values: Any, dtype: Any) -> NDArray[Any]:
    """A read-only copy; CaptureError when ``values`` is not one-dimensional or does not survive the conversion."""
    given = np.asarray(values)
    if given.ndim != 1:
        raise CaptureError(f"a span's columns have one dimension, got shape {given.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        array = given.astype(dtype, copy=True)
    if given.dtype != dtype and np.issubdtype(dtype, np.integer) and not np.array_equal(array, given):
        raise CaptureError(f"token ids and versions are whole numbers of 32 bits, got {given.dtype} values beyond that")
    array.flags.writeable = False
    return array


def _or_fill(values: NDArray[Any] | None, n: int, fill: float, dtype: Any) -> NDArray[Any]:
    return np.full(n, fill, dtype=dtype) if values is None else values

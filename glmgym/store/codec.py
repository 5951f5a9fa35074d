"""How one trajectory lies on disk: one JSON line, three token columns and a span table, each with its own digest.

Owned by ``glmgym.store``. Integers and floats are little-endian; log-probs and versions are kept for sampled tokens
only. Decoding goes through the frozen dataclasses again, so a record that could not have been made cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmgym.errors import CaptureError, StoreError
from glmgym.trajectory import (
    NO_VERSION,
    Failure,
    Outcome,
    Provenance,
    Reward,
    Segment,
    SegmentEnd,
    Span,
    SpanKind,
    Stop,
    Trajectory,
)

PARTS = ("header", "spans", "token_ids", "logprobs", "versions")
DIGEST_BYTES = 32

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")
# The position is the code on disk: append, never reorder.
_KINDS = (SpanKind.PROMPT, SpanKind.OBSERVATION, SpanKind.CARRIED, SpanKind.ACTION, SpanKind.SUMMARY)


@dataclass(frozen=True, slots=True)
class Record:
    """An encoded trajectory. ``digests`` holds the sha256 of each of ``PARTS``, in that order."""

    header: str  # everything that is not a token, as one JSON line
    spans: bytes  # [S, 3] int32: segment, kind, number of tokens
    token_ids: bytes  # [T] int32
    logprobs: bytes  # [sampled] float32 nats
    versions: bytes  # [sampled] int32
    digests: bytes


def encode(trajectory: Trajectory) -> Record:
    """The bytes of a trajectory. Equal trajectories give equal bytes.

    Raises:
        StoreError: sampling settings or timings are not plain JSON.
    """
    spans = [(i, span) for i, segment in enumerate(trajectory.segments) for span in segment.spans]
    table = [(i, _KINDS.index(span.kind), len(span)) for i, span in spans]
    parts = (
        _header(trajectory),
        np.array(table, dtype=_INT).tobytes(),
        _column([span.token_ids for _, span in spans], _INT),
        _column([span.logprobs for _, span in spans if span.logprobs is not None], _FLOAT),
        _column([span.versions for _, span in spans if span.versions is not None], _INT),
    )
    return Record(*parts, digests=_digests(trajectory.id, parts))


def decode(id: str, record: Record) -> Trajectory:
    """The trajectory that was encoded, bit for bit.

    Raises:
        StoreError: a part differs from its digest, or the parts do not make a trajectory; the message names both.
    """
    parts = (record.header, record.spans, record.token_ids, record.logprobs, record.versions)
    found = _digests(id, parts)
    if found != record.digests:
        at = range(0, DIGEST_BYTES * len(PARTS), DIGEST_BYTES)
        wrong = [
            name
            for name, i in zip(PARTS, at, strict=True)
            if found[i : i + DIGEST_BYTES] != record.digests[i : i + DIGEST_BYTES]
        ]
        raise StoreError(f"trajectory {id}: {' and '.join(wrong)} changed after writing (digest mismatch)")
    try:
        return _build(json.loads(record.header), record)
    except (CaptureError, ValueError, KeyError, IndexError, TypeError) as error:
        raise StoreError(f"trajectory {id}: the stored parts do not make a trajectory: {error}") from error


def summary_columns(trajectory: Trajectory) -> dict[str, str | int | float | None]:
    """What a summary row says of a record, by column name, derived from the record alone."""
    outcome = trajectory.outcome
    versions = [span.versions for segment in trajectory.segments for span in segment.spans if span.versions is not None]
    return {
        "family": trajectory.family,
        "num_turns": trajectory.num_turns,
        "num_tokens": sum(len(segment) for segment in trajectory.segments),
        "num_sampled": trajectory.num_sampled,
        "oldest_version": trajectory.oldest_version,
        "newest_version": max((int(part.max()) for part in versions), default=NO_VERSION),
        "reward": outcome.total() if outcome.rewards else None,
        "failure": printable(f"{outcome.failure.origin}: {outcome.failure.message}") if outcome.failure else "",
    }


def printable(text: str) -> str:
    """Text as UTF-8 can store it: lone surrogates, as foreign output brings them, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _build(header: dict[str, Any], record: Record) -> Trajectory:
    ids, logprobs = _Reader(record.token_ids, _INT), _Reader(record.logprobs, _FLOAT)
    versions = _Reader(record.versions, _INT)
    spans: list[list[Span]] = [[] for _ in header["ended_by"]]
    for segment, code, n in np.frombuffer(record.spans, _INT).reshape(-1, 3).tolist():
        kind = _KINDS[code]
        columns = (logprobs.take(n), versions.take(n)) if kind.is_sampled else (None, None)
        spans[segment].append(Span(kind, ids.take(n), *columns))
    for name, reader in (("token_ids", ids), ("logprobs", logprobs), ("versions", versions)):
        if reader.left:
            raise ValueError(f"{reader.left} {name} belong to no span")
    segments = zip(spans, header["ended_by"], strict=True)
    outcome = header["outcome"]
    return Trajectory(
        segments=tuple(Segment(tuple(part), SegmentEnd(end)) for part, end in segments),
        outcome=Outcome(
            Stop(outcome["stop"]),
            tuple(Reward(**reward) for reward in outcome["rewards"]),
            Failure(**outcome["failure"]) if outcome["failure"] else None,
        ),
        provenance=Provenance(**header["provenance"]),
        **header["names"],
    )


class _Reader:
    """Hands out a column in order."""

    def __init__(self, data: bytes, dtype: np.dtype[Any]) -> None:
        self._values = np.frombuffer(data, dtype)
        self._at = 0

    def take(self, n: int) -> NDArray[Any]:
        if not 0 < n <= self.left:
            raise ValueError(f"a span claims {n} tokens where {self.left} are left")
        self._at += n
        return self._values[self._at - n : self._at]

    @property
    def left(self) -> int:
        return len(self._values) - self._at


def _header(trajectory: Trajectory) -> str:
    outcome, provenance = trajectory.outcome, trajectory.provenance
    header = {
        "names": {
            name: getattr(trajectory, name)
            for name in ("id", "task_id", "env_id", "group_id", "family", "domain", "final_answer")
        },
        "outcome": asdict(outcome),
        "ended_by": [segment.ended_by for segment in trajectory.segments],
        "provenance": asdict(provenance),
    }
    try:
        # ASCII keeps lone surrogates of undecodable output, which UTF-8 would refuse.
        return json.dumps(header, allow_nan=False, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"trajectory {trajectory.id} cannot be written as JSON: {error}") from error


def _column(arrays: list[NDArray[Any]], dtype: np.dtype[Any]) -> bytes:
    return b"".join(array.astype(dtype, copy=False).tobytes() for array in arrays)


def _digests(id: str, parts: tuple[str, bytes, bytes, bytes, bytes]) -> bytes:
    """The id and the part's name go in too, so that a part cannot stand in for another one."""
    data = (part.encode() if isinstance(part, str) else part for part in parts)
    return b"".join(
        hashlib.sha256(f"{id}/{name}\n".encode() + part).digest() for name, part in zip(PARTS, data, strict=True)
    )

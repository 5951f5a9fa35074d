"""Records on disk: bit-identical round trips, and no altered byte goes unnoticed."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_strategies import TRAJECTORIES

from glmgym.errors import StoreError
from glmgym.store.codec import PARTS, Record, _digests, decode, encode, summary_columns
from glmgym.trajectory import Outcome, Provenance, Segment, Span, SpanKind, Stop, Trajectory


def small() -> Trajectory:
    action = Span(SpanKind.ACTION, np.array([7, 8]), np.array([-0.5, -1.5]), np.array([3, 4]))
    segments = (Segment((Span(SpanKind.PROMPT, np.array([5, 6])), action)),)
    return Trajectory("t00000001", "task", "env-v0", segments, Outcome(Stop.DONE))


@settings(max_examples=50, deadline=None)
@given(TRAJECTORIES)
def test_a_round_trip_is_bit_identical(trajectory: Trajectory) -> None:
    """Algorithms, invariant 16: storing keeps ids, log-probs, mask and versions bit for bit, and everything else."""
    record = encode(trajectory)
    back = decode(trajectory.id, record)
    for before, after in zip(trajectory.segments, back.segments, strict=True):
        assert before.ended_by is after.ended_by
        assert [span.kind for span in before.spans] == [span.kind for span in after.spans]
        for name in ("token_ids", "logprobs", "versions", "sampled_mask"):
            assert getattr(before, name).dtype == getattr(after, name).dtype
            assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
    for name in ("id", "task_id", "env_id", "outcome", "provenance", "group_id", "family", "domain", "final_answer"):
        assert getattr(back, name) == getattr(trajectory, name)
    assert encode(back) == record
    assert summary_columns(back) == summary_columns(trajectory)


def test_the_bytes_by_hand() -> None:
    record = encode(small())
    assert record.spans == bytes([0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0])
    assert record.token_ids == bytes([5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0])
    assert record.logprobs == bytes.fromhex("000000bf" + "0000c0bf")  # -0.5 and -1.5, sampled tokens only
    assert record.versions == bytes([3, 0, 0, 0, 4, 0, 0, 0])
    assert "\n" not in record.header


@settings(max_examples=50, deadline=None)
@given(TRAJECTORIES, st.data())
def test_any_flipped_bit_is_found_and_its_part_named(trajectory: Trajectory, data: st.DataObject) -> None:
    record = encode(trajectory)
    name = data.draw(st.sampled_from([part for part in PARTS if getattr(record, part)]))
    value = getattr(record, name)
    raw = bytearray(value.encode() if isinstance(value, str) else value)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 6))
    altered = raw.decode() if isinstance(value, str) else bytes(raw)
    with pytest.raises(StoreError, match=rf": {name} changed after writing") as caught:
        decode(trajectory.id, replace(record, **{name: altered}))
    assert str(caught.value).startswith(f"trajectory {trajectory.id}: ")


def test_a_part_cannot_stand_in_for_another_or_a_record_for_another_id() -> None:
    record = encode(small())
    with pytest.raises(StoreError, match="token_ids changed"):
        decode("t00000001", replace(record, token_ids=record.spans[:16]))
    with pytest.raises(StoreError, match="t00000002: header and spans and token_ids and logprobs and versions changed"):
        decode("t00000002", record)


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("versions", np.array([4, 3], "<i4").tobytes(), "go backwards"),
        ("versions", np.array([4], "<i4").tobytes(), "claims 2 tokens where 1 are left"),
        ("logprobs", np.array([-0.5, 0.5], "<f4").tobytes(), "positive or not finite"),
        ("logprobs", np.array([-0.5, -0.5, -0.5], "<f4").tobytes(), "1 logprobs belong to no span"),
        ("token_ids", np.array([5, 6, 7], "<i4").tobytes(), "claims 2 tokens where 1 are left"),
        ("token_ids", b"\0" * 15, "buffer size"),
        ("spans", np.array([0, 9, 4], "<i4").tobytes(), "index out of range"),
        ("spans", np.array([3, 0, 4], "<i4").tobytes(), "index out of range"),
        ("spans", np.array([0, 0, -4], "<i4").tobytes(), "claims -4 tokens"),
        ("header", "{}", "ended_by"),
        ("header", "[", "Expecting value"),
    ],
)
def test_parts_with_a_matching_digest_must_still_make_a_trajectory(part: str, value: bytes | str, reason: str) -> None:
    """What a broken writer could leave behind is refused by the dataclasses on the way in."""
    record = replace(encode(small()), **{part: value})
    *parts, _ = astuple(record)
    forged = Record(*parts, digests=_digests("t00000001", tuple(parts)))
    with pytest.raises(StoreError, match=f"t00000001: the stored parts do not make a trajectory: .*{reason}"):
        decode("t00000001", forged)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_is_not_plain_json_is_refused_at_writing(value: object) -> None:
    with pytest.raises(StoreError, match="t00000001 cannot be written as JSON"):
        encode(replace(small(), provenance=Provenance(sampling={"temperature": value})))

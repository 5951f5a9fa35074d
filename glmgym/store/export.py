"""Records as JSON lines, for people and programs that do not know the store. Owned by ``glmgym.store``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glmgym.errors import StoreError
from glmgym.store.store import TrajectoryStore
from glmgym.trajectory import Span, Trajectory


def export(store: TrajectoryStore, path: Path) -> int:
    """Write every stored record to ``path``, one JSON object a line, oldest id first.

    The file appears whole or not at all. Numbers read back as float32 and int32 give the same bits.

    Returns:
        The number of lines.

    Raises:
        StoreError: a record was altered, or the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    written = 0
    try:
        with partial.open("w", encoding="ascii") as file:
            for trajectory in store.trajectories():
                last = store.history(trajectory.id)[-1]
                line = {"state": last.state, "reason": last.reason, **_plain(trajectory)}
                file.write(json.dumps(line, allow_nan=False) + "\n")
                written += 1
        os.replace(partial, path)
    except OSError as error:
        raise StoreError(f"cannot export to {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return written


def _plain(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "id": trajectory.id,
        "task_id": trajectory.task_id,
        "env_id": trajectory.env_id,
        "group_id": trajectory.group_id,
        "family": trajectory.family,
        "domain": trajectory.domain,
        "final_answer": trajectory.final_answer,
        "outcome": asdict(trajectory.outcome),
        "provenance": asdict(trajectory.provenance),
        "segments": [
            {"ended_by": segment.ended_by, "spans": [_plain_span(span) for span in segment.spans]}
            for segment in trajectory.segments
        ],
    }


def _plain_span(span: Span) -> dict[str, Any]:
    columns = {"token_ids": span.token_ids, "logprobs": span.logprobs, "versions": span.versions}
    return {"kind": span.kind, **{name: part.tolist() for name, part in columns.items() if part is not None}}

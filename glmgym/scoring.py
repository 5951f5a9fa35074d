"""What a teacher says about the tokens a student sampled: the record, and who scores which trajectory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScore:
    """One teacher's view of one segment, aligned with its tokens: entry p is about token p given all before it.

    Entry 0 has no prefix and means nothing. Log-probs are over the whole vocabulary, at the temperature the student
    sampled with, in nats.
    """

    teacher: str
    logprobs: NDArray[np.float32]  # [T]
    top_ids: NDArray[np.int32] | None = None  # [T, k] the teacher's likeliest tokens, likeliest first
    top_logprobs: NDArray[np.float32] | None = None  # [T, k]

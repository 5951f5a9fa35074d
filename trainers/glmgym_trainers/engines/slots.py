"""Which session holds which row of the KV cache, what of it may be reused, and who is evicted.

A session keeps its row over turns. Active rows are kept within ``[0, width)``, which is what decode computes; a few
idle rows in between are tolerated, because moving keys for every finished turn costs more than computing a spare row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from glmgym_trainers.engines.kv_cache import KVCache

MIN_OCCUPANCY = 0.75  # of the rows computed per decode step; below it, active rows are moved together


@dataclass(slots=True, eq=False)
class Slot:
    row: int
    session: str | None = None
    token_ids: list[int] = field(default_factory=list)  # those whose keys and values are in the cache
    version: int = 0  # the oldest weights behind those keys
    is_active: bool = False
    last_used: int = 0


class Slots:
    """Rows by session. Eviction takes the idle session that was used least recently."""

    def __init__(self, cache: KVCache, num_rows: int) -> None:
        self.rows = [Slot(row) for row in range(num_rows)]
        self.width = 0  # rows that decode computes
        self.evicted = 0
        self._cache = cache
        self._sessions: dict[str, Slot] = {}
        self._clock = count(1)

    def admit(self, session: str, prompt_ids: Sequence[int], version: int) -> Slot | None:
        """An active slot whose ``token_ids`` are the reusable prefix of the prompt; ``None`` if every row is active.

        At least the last prompt token is left to compute, since its logits are needed. Keys of older weights serve only
        the continuation of the very context they were computed for; a context that departs from it starts afresh.
        """
        slot = self._sessions.get(session) or self._take(session)
        if slot is None:
            return None
        reused = _common_prefix(slot.token_ids, prompt_ids[:-1])
        if reused < len(slot.token_ids) and slot.version != version:
            reused = 0
        del slot.token_ids[reused:]
        if reused == 0:
            slot.version = version
        slot.is_active = True
        slot.last_used = next(self._clock)
        if slot.row >= self.width:
            hole = next((s.row for s in self.rows[: self.width] if not s.is_active), self.width)
            self._swap(slot.row, hole)
            self.width = max(self.width, hole + 1)
        return slot

    def retire(self, slot: Slot) -> None:
        """The slot's request is over; its keys stay for the session's next turn."""
        slot.is_active = False
        while self.width and not self.rows[self.width - 1].is_active:
            self.width -= 1
        num_active = sum(s.is_active for s in self.rows[: self.width])
        if num_active < MIN_OCCUPANCY * self.width:
            self._compact(num_active)

    def release(self, session: str) -> None:
        """Forget an idle session."""
        slot = self._sessions.pop(session, None)
        if slot is not None:
            slot.session = None
            slot.token_ids.clear()

    def forget_all(self) -> None:
        """Forget every session's keys. Sessions keep their rows."""
        for slot in self.rows:
            slot.token_ids.clear()

    def _take(self, session: str) -> Slot | None:
        idle = [slot for slot in self.rows if not slot.is_active]
        if not idle:
            return None
        slot = min(idle, key=lambda s: (s.session is not None, s.last_used))
        if slot.session is not None:
            self.evicted += 1
            self.release(slot.session)
        slot.session = session
        self._sessions[session] = slot
        return slot

    def _compact(self, num_active: int) -> None:
        holes = [slot.row for slot in self.rows[:num_active] if not slot.is_active]
        movers = [slot.row for slot in self.rows[num_active : self.width] if slot.is_active]
        for hole, mover in zip(holes, movers, strict=True):
            self._swap(hole, mover)
        self.width = num_active

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self._cache.swap(a, b, max(len(self.rows[a].token_ids), len(self.rows[b].token_ids)))
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        self.rows[a].row, self.rows[b].row = a, b


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, compared at C speed
        return n
    return next(index for index in range(n) if a[index] != b[index])

"""The words of the store: states and the moves between them, counts and their law, and the rows people look at.

Owned by ``glmgym.store``. Nothing here touches a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    ISSUED = "issued"  # an id exists, nothing runs yet
    RUNNING = "running"
    READY = "ready"  # the record is stored and waits for the trainer
    TRAINING = "training"  # handed to the trainer
    CONSUMED = "consumed"  # part of a finished update
    DISCARDED = "discarded"  # never to be trained, with a reason; a finished record is kept


# The moves a caller may ask for. ``recover`` alone makes one more: CONSUMED -> DISCARDED, for updates that were lost.
ALLOWED: dict[State, frozenset[State]] = {
    State.ISSUED: frozenset({State.RUNNING, State.DISCARDED}),
    State.RUNNING: frozenset({State.READY, State.DISCARDED}),
    State.READY: frozenset({State.TRAINING, State.DISCARDED}),
    State.TRAINING: frozenset({State.CONSUMED, State.READY, State.DISCARDED}),
    State.CONSUMED: frozenset(),
    State.DISCARDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """How many ids were ever issued, and how many trajectories are in each state now.

    ``issued`` comes from the id counter, not from adding up the rows, so that a lost row breaks the law.
    """

    issued: int
    not_started: int = 0  # in state ISSUED
    running: int = 0
    ready: int = 0
    training: int = 0
    consumed: int = 0
    discarded: int = 0

    @property
    def unfinished(self) -> int:
        """Neither consumed nor discarded."""
        return self.not_started + self.running + self.ready + self.training

    def holds_law(self) -> bool:
        """True when every id ever issued is in exactly one state."""
        return self.issued == self.unfinished + self.consumed + self.discarded


@dataclass(frozen=True, slots=True)
class Summary:
    """One trajectory as a row: its state, and what can be said without reading its tokens.

    The record's own columns (from ``family`` on) are zero or empty until it is finished.
    """

    id: str
    task_id: str
    env_id: str
    group_id: str
    version: int  # in effect when the id was issued
    state: State
    reason: str  # of a discard
    step: int | None  # the optimiser step that uses or used it
    consumed_version: int | None  # of the policy when it was consumed
    num_trained: int | None  # tokens the trainer says it trained
    family: str
    num_turns: int
    num_tokens: int
    num_sampled: int
    oldest_version: int  # among the sampled tokens, NO_VERSION if there are none
    newest_version: int
    reward: float | None  # None: failed, or never graded
    failure: str  # "origin: message", empty unless it failed


@dataclass(frozen=True, slots=True)
class Change:
    """One step in the life of a trajectory. ``at`` is seconds since 1970, UTC."""

    at: float
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """What ``recover`` did after a kill, in trajectories."""

    interrupted: int = 0  # issued or running -> discarded
    returned: int = 0  # training -> ready
    consumed: int = 0  # training -> consumed: the checkpoint already holds their update
    lost: int = 0  # discarded: trained into, or sampled by, weights that no checkpoint kept


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a resumed run goes on: the last step in the newest complete checkpoint, and its policy version."""

    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where ``recover`` puts one trajectory, and which of ``Recovered``'s counts it belongs to."""

    word: str
    state: State
    reason: str = ""


def settle(state: State, step: int | None, newest_version: int, checkpoint: Checkpoint) -> Settlement | None:
    """What a restart from ``checkpoint`` makes of a trajectory; None leaves it alone.

    Args:
        step: the optimiser step noted for it.
        newest_version: of its sampled tokens.
    """
    in_checkpoint = step is not None and step <= checkpoint.step
    if state in (State.ISSUED, State.RUNNING):
        return Settlement("interrupted", State.DISCARDED, "interrupted")
    if state is State.TRAINING and in_checkpoint:
        return Settlement("consumed", State.CONSUMED)
    if state is State.CONSUMED and not in_checkpoint:
        return Settlement("lost", State.DISCARDED, f"lost with step {step}")
    if state in (State.READY, State.TRAINING) and newest_version > checkpoint.version:
        return Settlement("lost", State.DISCARDED, f"sampled by version {newest_version}, which was lost")
    if state is State.TRAINING:
        return Settlement("returned", State.READY)
    return None

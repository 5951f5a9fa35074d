"""The trajectory store: SQLite in WAL mode, one transaction per state change, and the conservation law."""

from glmgym.store.credit import read_credit, write_credit
from glmgym.store.export import export
from glmgym.store.states import Change, Counts, Recovered, State, Summary
from glmgym.store.store import TrajectoryStore

__all__ = [
    "Change",
    "Counts",
    "Recovered",
    "State",
    "Summary",
    "TrajectoryStore",
    "export",
    "read_credit",
    "write_credit",
]

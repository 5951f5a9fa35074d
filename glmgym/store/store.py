"""The trajectory store: every id ever issued, its state, its record, and the law that none is lost or used twice.

Owned here: which moves happen and what a restart makes of what it finds. Methods are synchronous and short, safe from
any thread; call them through ``asyncio.to_thread``. Each is one transaction: it happens whole or not at all.

The trainer's order of business, which makes a kill at any point harmless::

    take -> begin_step(ids, step) -> optimiser step -> checkpoint (atomic rename, carries its step) -> consume(ids)

After a kill, ``recover`` compares the steps noted on the rows with that of the newest complete checkpoint.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from glmgym.errors import StoreError
from glmgym.store.codec import Record, decode, encode, printable, summary_columns
from glmgym.store.database import Database
from glmgym.store.states import ALLOWED, Change, Checkpoint, Counts, Recovered, State, Summary, settle
from glmgym.trajectory import Trajectory

_ID = re.compile(r"t([0-9]{8,18})")
_COLUMNS = tuple(field.name for field in fields(Summary))[1:]  # the row number stands for the id


class TrajectoryStore:
    """Made by ``open``; closed by ``close`` or at the end of a ``with``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True, read_only: bool = False) -> Self:
        """The store at ``path``: as its one writer, or ``read_only``, which also works while a run is writing it.

        Raises:
            StoreError: it is missing (and not to be created), no store, of a newer version, in use, or unreadable.
        """
        return cls(Database(Path(path), create=create and not read_only, read_only=read_only))

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # The life of one trajectory, in order. All raise StoreError on an illegal move and then change nothing.

    def issue(self, task_id: str, env_id: str, *, version: int, group_id: str = "") -> str:
        """A new id, greater than every earlier one. ``version`` is the policy version in effect."""
        with self._database.change() as db:
            return self._issue(db, task_id, env_id, version, group_id)

    def start(self, id: str) -> None:
        """issued -> running."""
        with self._database.change() as db:
            self._move(db, id, State.RUNNING)

    def finish(self, trajectory: Trajectory) -> None:
        """running -> ready, or discarded("failed: origin"); the record is stored with it either way."""
        with self._database.change() as db:
            self._finish(db, trajectory)

    def retry(self, trajectory: Trajectory, *, version: int, group_id: str = "") -> str:
        """``finish`` a failed attempt and ``issue`` another one of its task: at no moment is its place free.

        Raises:
            StoreError: also where the attempt did not fail.
        """
        if trajectory.outcome.failure is None:
            raise StoreError(f"trajectory {trajectory.id} did not fail: there is nothing to make again")
        with self._database.change() as db:
            self._finish(db, trajectory)
            return self._issue(db, trajectory.task_id, trajectory.env_id, version, group_id)

    def add(self, trajectory: Trajectory) -> str:
        """Take in a record made elsewhere, such as an evaluation's, under a new id, which is returned.

        It is issued, started and finished in one transaction.
        """
        with self._database.change() as db:
            version = trajectory.oldest_version
            id = self._issue(db, trajectory.task_id, trajectory.env_id, version, trajectory.group_id)
            self._move(db, id, State.RUNNING)
            self._finish(db, replace(trajectory, id=id))
        return id

    def take(self, n: int, *, oldest_first: bool = True) -> list[Trajectory]:
        """ready -> training: at most ``n``, by the version of their oldest token and then by id."""
        order = "ASC" if oldest_first else "DESC"
        with self._database.change() as db:
            rows = db.execute(
                f"SELECT n FROM trajectories WHERE state = ? ORDER BY oldest_version {order}, n {order} LIMIT ?",
                (State.READY, n),
            ).fetchall()
            return self._take(db, [_id(number) for (number,) in rows])

    def take_ids(self, ids: Sequence[str]) -> list[Trajectory]:
        """ready -> training: exactly these, in this order."""
        with self._database.change() as db:
            return self._take(db, ids)

    def begin_step(self, ids: Sequence[str], step: int) -> None:
        """Note, before the optimiser runs, which step trains ``ids``; those still ready go to training."""
        with self._database.change() as db:
            for id in ids:
                n, state, noted = self._row(db, id)
                if noted is not None:
                    raise StoreError(f"trajectory {id} is {state} and already belongs to step {noted}")
                if state is not State.TRAINING:
                    self._move(db, id, State.TRAINING)
                db.execute("UPDATE trajectories SET step = ? WHERE n = ?", (step, n))

    def consume(self, ids: Sequence[str], *, version: int, trained: Mapping[str, int] | None = None) -> None:
        """training -> consumed, once the update is safe.

        Args:
            version: of the policy at that moment; at least that of every token trained.
            trained: tokens of each id that entered the loss; ``verify`` holds them against the tokens sampled.
        """
        with self._database.change() as db:
            for id in ids:
                n, _, step = self._row(db, id)
                self._move(db, id, State.CONSUMED)
                if step is None:
                    raise StoreError(f"trajectory {id} cannot be consumed: begin_step was never called for it")
                db.execute(
                    "UPDATE trajectories SET consumed_version = ?, num_trained = ? WHERE n = ?",
                    (version, None if trained is None else trained[id], n),
                )

    def give_back(self, ids: Sequence[str]) -> None:
        """training -> ready: the batch was not used after all."""
        with self._database.change() as db:
            for id in ids:
                self._move(db, id, State.READY, source=State.TRAINING)

    def discard(self, ids: Sequence[str], reason: str) -> None:
        """Any state before consumed -> discarded. A stored record is kept."""
        with self._database.change() as db:
            for id in ids:
                self._move(db, id, State.DISCARDED, reason=reason)

    def interrupt(self) -> None:
        """issued or running -> discarded("interrupted"): whoever was playing these attempts has stopped."""
        with self._database.change() as db:
            states = (State.ISSUED, State.RUNNING)
            for (n,) in db.execute("SELECT n FROM trajectories WHERE state IN (?, ?)", states).fetchall():
                _set_state(db, n, State.DISCARDED, "interrupted")

    def recover(self, *, step: int, version: int) -> Recovered:
        """Settle what a killed run left behind; call once, before anything else, when resuming.

        Attempts that were under way are discarded. Rows in training go by their step: up to ``step`` the checkpoint
        already holds their update, so they are consumed; later ones, or none noted, go back to ready. Rows consumed by
        a later step were trained into weights that no checkpoint kept: they are discarded, so that no trajectory is
        ever trained twice, not even in a lineage that was lost. What a lost version sampled is discarded too, since
        the resumed run gives its number to other weights. Saving a checkpoint before each ``consume`` leaves none of
        either kind.

        Args:
            step: of the newest complete checkpoint; one less than the first step when there is none.
            version: of the policy in that checkpoint.
        """
        settled = dict.fromkeys(("interrupted", "returned", "consumed", "lost"), 0)
        with self._database.change() as db:
            rows = db.execute("SELECT n, state, step, newest_version FROM trajectories ORDER BY n").fetchall()
            for n, state, noted, newest in rows:
                settlement = settle(State(state), noted, newest, Checkpoint(step, version))
                if settlement is None:
                    continue
                settled[settlement.word] += 1
                _set_state(db, n, settlement.state, settlement.reason)
                if settlement.state is State.CONSUMED:
                    db.execute("UPDATE trajectories SET consumed_version = ? WHERE n = ?", (version, n))
        return Recovered(**settled)

    # Looking.

    def counts(self) -> Counts:
        """How many trajectories are in each state, as of one moment."""
        with self._database.read() as db:
            rows = db.execute(
                "SELECT state, count(*) FROM trajectories GROUP BY state"
                " UNION ALL SELECT '*', coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'trajectories'"
            ).fetchall()
        found = dict(rows)
        found["not_started"] = found.pop(State.ISSUED, 0)
        found["issued"] = found.pop("*")
        return Counts(**found)

    def summaries(self, state: State | None = None) -> list[Summary]:
        """One row per trajectory, oldest id first; tokens are not read."""
        with self._database.read() as db:
            rows = db.execute(
                f"SELECT n, {', '.join(_COLUMNS)} FROM trajectories WHERE ? IS NULL OR state = ? ORDER BY n",
                (state, state),
            ).fetchall()
        return [_summary(*row) for row in rows]

    def ready(self) -> list[Summary]:
        """The rows the trainer may take, oldest id first."""
        return self.summaries(State.READY)

    def get(self, id: str) -> Trajectory:
        """One stored record, digests checked.

        Raises:
            StoreError: no such id, no record yet, or the record was altered.
        """
        with self._database.read() as db:
            return self._decoded(db, id)

    def trajectories(self, chosen: State | Sequence[str] | None = None) -> Iterator[Trajectory]:
        """Stored records one at a time, oldest id first: those of ``chosen`` ids, of a state, or all."""
        for id in chosen if isinstance(chosen, Sequence) and not isinstance(chosen, State) else self.recorded(chosen):
            yield self.get(id)

    def recorded(self, state: State | None = None) -> list[str]:
        """The ids that have a record, oldest first."""
        with self._database.read() as db:
            rows = db.execute(
                "SELECT n FROM records JOIN trajectories USING (n) WHERE ? IS NULL OR state = ? ORDER BY n",
                (state, state),
            ).fetchall()
        return [_id(n) for (n,) in rows]

    def history(self, id: str) -> list[Change]:
        """Every state the trajectory was in, from ISSUED to the present one."""
        with self._database.read() as db:
            rows = db.execute(
                "SELECT at, state, reason FROM changes WHERE n = ? ORDER BY rowid", (self._row(db, id)[0],)
            ).fetchall()
        return [Change(at, State(state), reason) for at, state, reason in rows]

    def snapshot(self) -> AbstractContextManager[None]:
        """Inside, this thread sees the store as of one moment, whatever another process writes."""
        return self._database.snapshot()

    def damage(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; empty when it is sound."""
        return self._database.damage()

    def _issue(self, db: sqlite3.Connection, task_id: str, env_id: str, version: int, group_id: str) -> str:
        n = db.execute(
            "INSERT INTO trajectories (task_id, env_id, group_id, version, state) VALUES (?, ?, ?, ?, ?)",
            (task_id, env_id, group_id, version, State.ISSUED),
        ).lastrowid
        assert n is not None
        _set_state(db, n, State.ISSUED, "")
        return _id(n)

    def _finish(self, db: sqlite3.Connection, trajectory: Trajectory) -> None:
        failure = trajectory.outcome.failure
        if failure is None:
            n = self._move(db, trajectory.id, State.READY, source=State.RUNNING)
        else:
            n = self._move(db, trajectory.id, State.DISCARDED, reason=f"failed: {failure.origin}", source=State.RUNNING)
        names = (trajectory.task_id, trajectory.env_id, trajectory.group_id)
        issued = db.execute("SELECT task_id, env_id, group_id FROM trajectories WHERE n = ?", (n,)).fetchone()
        if names != issued:
            raise StoreError(f"trajectory {trajectory.id} was issued for {issued}; its record says {names}")
        columns = summary_columns(trajectory)
        assignments = ", ".join(f"{name} = ?" for name in columns)
        db.execute(f"UPDATE trajectories SET {assignments} WHERE n = ?", (*columns.values(), n))
        db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", (n, *astuple(encode(trajectory))))

    def _take(self, db: sqlite3.Connection, ids: Sequence[str]) -> list[Trajectory]:
        for id in ids:
            self._move(db, id, State.TRAINING)
        return [self._decoded(db, id) for id in ids]

    def _move(
        self, db: sqlite3.Connection, id: str, to: State, *, source: State | None = None, reason: str = ""
    ) -> int:
        n, state, _ = self._row(db, id)
        if to not in ALLOWED[state] or source not in (None, state):
            raise StoreError(f"trajectory {id} is {state} and cannot become {to}")
        _set_state(db, n, to, reason)
        return n

    def _row(self, db: sqlite3.Connection, id: str) -> tuple[int, State, int | None]:
        """The row number, state and step of an id."""
        match = _ID.fullmatch(id)
        n = int(match[1]) if match else -1
        row = db.execute("SELECT n, state, step FROM trajectories WHERE n = ?", (n,)).fetchone()
        if row is None or _id(n) != id:
            raise StoreError(f"no trajectory {id!r} in {self.path}")
        return n, State(row[1]), row[2]

    def _decoded(self, db: sqlite3.Connection, id: str) -> Trajectory:
        n, state, _ = self._row(db, id)
        row = db.execute(
            "SELECT header, spans, token_ids, logprobs, versions, digests FROM records WHERE n = ?", (n,)
        ).fetchone()
        if row is None:
            raise StoreError(f"trajectory {id} is {state}: it has no record")
        return decode(id, Record(*row))


def _id(n: int) -> str:
    """Ids sort as they were issued."""
    return f"t{n:08d}"


def _summary(n: int, *values: Any) -> Summary:
    columns = dict(zip(_COLUMNS, values, strict=True))
    return Summary(id=_id(n), **{**columns, "state": State(columns["state"])})


def _set_state(db: sqlite3.Connection, n: int, to: State, reason: str) -> None:
    """The one place where a state changes: the row and its history together."""
    reason = printable(reason)
    db.execute("UPDATE trajectories SET state = ?, reason = ? WHERE n = ?", (to, reason, n))
    if to is State.READY:
        db.execute("UPDATE trajectories SET step = NULL WHERE n = ?", (n,))
    db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (n, time.time(), to, reason))

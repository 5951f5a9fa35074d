"""The SQLite file under the store: opening it, owning it, one transaction at a time, and errors as sentences.

Owned by ``glmgym.store``. One process writes (held by a file lock), any number read. One connection is shared by all
threads of a process and guarded by a lock, so that every method can go through ``asyncio.to_thread``.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from glmgym.errors import StoreError

APPLICATION_ID = 0x676C6D67  # "glmg", in the file's header
SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE trajectories (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL,
    env_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    step INTEGER,
    consumed_version INTEGER,
    num_trained INTEGER,
    family TEXT NOT NULL DEFAULT '',
    num_turns INTEGER NOT NULL DEFAULT 0,
    num_tokens INTEGER NOT NULL DEFAULT 0,
    num_sampled INTEGER NOT NULL DEFAULT 0,
    oldest_version INTEGER NOT NULL DEFAULT -1,
    newest_version INTEGER NOT NULL DEFAULT -1,
    reward REAL,
    failure TEXT NOT NULL DEFAULT ''
);
CREATE INDEX trajectories_by_state ON trajectories (state, n);
CREATE TABLE records (
    n INTEGER PRIMARY KEY REFERENCES trajectories (n),
    header TEXT NOT NULL,
    spans BLOB NOT NULL,
    token_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    versions BLOB NOT NULL,
    digests BLOB NOT NULL
);
CREATE TABLE changes (
    n INTEGER NOT NULL REFERENCES trajectories (n),
    at REAL NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX changes_by_trajectory ON changes (n);
"""


class Database:
    """An open store file. Use ``change`` to write and ``read`` to read."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        self.path = path
        self._guard = threading.RLock()
        self._resources = ExitStack()  # closed in reverse: the connection first, then the lock
        if not create and not path.is_file():
            raise StoreError(f"no trajectory store at {path}")
        try:
            with self._sentences():
                if not read_only:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._resources.callback(os.close, _own(path))
                uri = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rwc'}"
                self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
                self._resources.callback(self._connection.close)
                self._prepare(read_only)
        except StoreError:
            self._resources.close()
            raise

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: everything inside is committed together, or nothing is.

        Raises:
            StoreError: the file cannot be written; the store is as it was before.
        """
        with self._guard, self._sentences():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have rolled back already
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reading.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._guard, self._sentences():
            yield self._connection

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Every ``read`` of this thread inside sees the file as of one moment, whatever another process writes.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._guard, self._sentences():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def damage(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; empty when it is sound."""
        with self.read() as db:
            found = [str(line) for (line,) in db.execute("PRAGMA integrity_check(10)")]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close the file and let another process write it. Closing twice is harmless."""
        with self._guard:
            self._resources.close()

    def _prepare(self, read_only: bool) -> None:
        db = self._connection
        db.execute("PRAGMA busy_timeout = 10000")
        ((application,),) = db.execute("PRAGMA application_id")
        ((version,),) = db.execute("PRAGMA user_version")
        ((tables,),) = db.execute("SELECT count(*) FROM sqlite_master")
        # A kill during creation leaves a file without tables; it is made anew.
        is_new = application == 0 and version == 0 and tables == 0
        if not is_new and application != APPLICATION_ID:
            raise StoreError(f"{self.path} is a database, but not a trajectory store")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer glmgym (store version {version}, this one reads up to "
                f"{SCHEMA_VERSION}); upgrade glmgym to open it"
            )
        if is_new and read_only:
            raise StoreError(f"{self.path} is an empty trajectory store: nothing was ever written to it")
        if read_only:
            return
        db.execute("PRAGMA journal_mode = WAL")
        # FULL, not NORMAL: NORMAL survives a SIGKILL but may lose the last commits with the power. A checkpoint that
        # outlives the `begin_step` of its own trajectories would let them be trained twice. A commit costs one fsync,
        # a few milliseconds, a handful of times per trajectory.
        db.execute("PRAGMA synchronous = FULL")
        if is_new:
            with self.change():
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(self._sentence(error)) from error
        except OSError as error:
            raise StoreError(f"cannot open the trajectory store {self.path}: {error.strerror}") from error

    def _sentence(self, error: sqlite3.Error) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the high bits only say more about the same class
        if code == sqlite3.SQLITE_NOTADB:
            return f"{self.path} is not a trajectory store"
        if code == sqlite3.SQLITE_FULL:
            return f"the disk is full: cannot write {self.path}; free some space and resume, nothing committed is lost"
        if code == sqlite3.SQLITE_CORRUPT:
            return f"the trajectory store {self.path} is damaged: {error}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return f"the trajectory store {self.path} is kept busy by another process: {error}"
        return f"the trajectory store {self.path} failed: {error}"


def _own(path: Path) -> int:
    """Hold the store's lock file until the descriptor is closed.

    The kernel's lock ends with its process however that dies, and no process id can be mistaken for a later one; what
    is written in the file only names the holder for people.
    """
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with closing(os.fdopen(fd, encoding="utf-8")) as file:
            holder = file.read().strip() or "another process"
        raise StoreError(f"{path} is in use by {holder}; stop that run first, or read it with inspect") from None
    started = datetime.now(UTC).isoformat(timespec="seconds")
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} (since {started})\n".encode(), 0)
    return fd

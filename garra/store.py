"""What must last, in one SQLite file under the state folder: `state.db`.

Several garra commands may use it at once: write-ahead log, a busy timeout, transactions that take the write lock at
their beginning. One thread per process does all of it, so that no event loop ever waits for a disk. Later parts of
garra add tables here, by a further entry in `MIGRATIONS`; `user_version` counts them.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from garra.errors import ConfigError

log = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
_AGAIN_S = 0.02
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE bills (key TEXT PRIMARY KEY, bill TEXT NOT NULL, at TEXT NOT NULL) STRICT;
    CREATE TABLE loads (
        id INTEGER PRIMARY KEY, profile TEXT NOT NULL, engine TEXT NOT NULL, device TEXT NOT NULL,
        planned INTEGER NOT NULL, measured INTEGER NOT NULL, at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX loads_by_engine ON loads (engine, device, id);
    CREATE TABLE rungs (key TEXT PRIMARY KEY, profile TEXT NOT NULL, rung INTEGER NOT NULL, why TEXT NOT NULL,
                        at TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE artifacts (
        id INTEGER PRIMARY KEY, ref TEXT NOT NULL UNIQUE, origin TEXT NOT NULL, path TEXT NOT NULL,
        n_bytes INTEGER NOT NULL, revision TEXT NOT NULL, publisher TEXT NOT NULL, licence TEXT NOT NULL,
        base_model TEXT NOT NULL, facts TEXT NOT NULL, warnings TEXT NOT NULL, added TEXT NOT NULL,
        used TEXT, vram_bytes INTEGER, ram_bytes INTEGER, decode_tok_s REAL
    ) STRICT;
    CREATE INDEX artifacts_by_path ON artifacts (path);
    CREATE TABLE files (
        artifact INTEGER NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE, role TEXT NOT NULL, path TEXT NOT NULL,
        n_bytes INTEGER NOT NULL, sha256 TEXT, checked TEXT, PRIMARY KEY (artifact, path)
    ) STRICT;
    """,
    """
    CREATE TABLE bench_runs (
        id TEXT PRIMARY KEY, at TEXT NOT NULL, label TEXT NOT NULL, engine TEXT NOT NULL, model TEXT NOT NULL,
        head TEXT NOT NULL
    ) STRICT;
    CREATE TABLE bench_samples (
        id INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES bench_runs (id) ON DELETE CASCADE, cell INTEGER NOT NULL,
        raw TEXT NOT NULL
    ) STRICT;
    CREATE INDEX bench_samples_by_run ON bench_samples (run, id);
    CREATE TABLE tunes (id TEXT PRIMARY KEY, profile TEXT NOT NULL, at TEXT NOT NULL, key TEXT NOT NULL,
                        state TEXT NOT NULL) STRICT;
    CREATE TABLE trials (
        id INTEGER PRIMARY KEY, tune TEXT NOT NULL REFERENCES tunes (id) ON DELETE CASCADE, raw TEXT NOT NULL
    ) STRICT;
    CREATE INDEX trials_by_tune ON trials (tune, id);
    """,
)

T = TypeVar("T")


class Store:
    """One connection in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None

    def run(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """`work` in one transaction: all of it is kept, or nothing. Work is done in the order it came."""
        return self._thread.submit(self._in_transaction, work)

    def close(self) -> None:
        """Do what was asked for, then close."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = _open(self._path)
        with _transaction(self._connection):
            return work(self._connection)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open(path: Path) -> sqlite3.Connection:
    """A connection to the migrated file. One that is no database is put aside: what it held can be measured again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _migrated(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked, read-only, disk full: the file itself is not to blame
            raise ConfigError(f"cannot use {path}: {error}", fix=f"check {path.parent} and the space there") from None
        aside = path.with_suffix(".db.broken")
        log.warning("%s is damaged (%s): it is put aside as %s", path, error, aside.name)
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _migrated(path)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """The first to open a file switches it, for which SQLite's busy timeout does not count: the others try again."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _migrated(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        with _transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                raise ConfigError(f"{path} was written by a newer garra", fix="update garra, or move that file away")
            for number in range(version, len(MIGRATIONS)):
                for statement in MIGRATIONS[number].split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    except BaseException:
        connection.close()
        raise
    return connection

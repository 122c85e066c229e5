"""What a tune has measured so far, kept after every trial: a tune that was killed goes on where it stood."""

from __future__ import annotations

import datetime
import json
import sqlite3
from typing import Any

from garra.store import Store

Entry = dict[str, Any]


class Journal:
    """The trials of one tune. Every call blocks for the store's thread."""

    def __init__(self, store: Store, tune: str, entries: list[Entry]) -> None:
        self._store = store
        self.tune = tune
        self.entries = entries
        """Those of earlier runs and of this one, in order."""

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO trials (tune, raw) VALUES (?, ?)", (self.tune, json.dumps(entry)))

        self._store.run(write).result()

    def finish(self, result: Entry) -> None:
        """The tune is over; a later one begins anew."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE tunes SET state = ? WHERE id = ?", (json.dumps(result), self.tune))

        self._store.run(write).result()


def begin(store: Store, profile: str, key: str, *, fresh: bool) -> Journal:
    """The unfinished tune of this very profile, machine, engine and wish, or a new one."""

    def find(db: sqlite3.Connection) -> Journal:
        row = db.execute(
            "SELECT id FROM tunes WHERE key = ? AND state = '' ORDER BY at DESC LIMIT 1", (key,)
        ).fetchone()
        if row is not None and not fresh:
            told = db.execute("SELECT raw FROM trials WHERE tune = ? ORDER BY id", row)
            return Journal(store, row[0], [json.loads(raw) for (raw,) in told])
        db.execute("DELETE FROM tunes WHERE key = ? AND state = ''", (key,))
        now = datetime.datetime.now(datetime.UTC)
        tune = f"{profile}-{now:%y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"
        db.execute("INSERT INTO tunes VALUES (?, ?, ?, ?, '')", (tune, profile, now.isoformat(), key))
        return Journal(store, tune, [])

    return store.run(find).result()


def last_result(store: Store, profile: str) -> Entry | None:
    """What the profile's last finished tune found."""

    def find(db: sqlite3.Connection) -> Entry | None:
        row = db.execute(
            "SELECT state FROM tunes WHERE profile = ? AND state != '' ORDER BY at DESC LIMIT 1", (profile,)
        ).fetchone()
        told: Entry | None = json.loads(row[0]) if row is not None else None
        return told

    return store.run(find).result()

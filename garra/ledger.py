"""What was learned about memory: the engine's bills, what loads really took, how far down the ladder a profile is.

All of it can be measured again; losing it costs time, not truth.
"""

from __future__ import annotations

import datetime
import json
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from garra.bill import Bill
from garra.errors import ConfigError
from garra.store import Store

log = logging.getLogger(__name__)

_KEPT_LOADS = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lowered:
    """Why a profile does not start as it asks."""

    rung: int
    why: str
    at: str


@dataclass(frozen=True, slots=True)
class Load:
    """What one load was planned to take of a device, and took. Of a GPU: without what the driver takes itself."""

    device: str
    planned_bytes: int
    measured_bytes: int
    at: str


class Ledger:
    """Reads and writes of one store. Every call blocks for its thread: not for an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def bill(self, key: str) -> Bill | None:
        """A bill the engine made out before, for exactly this engine, file and command line."""

        def find(connection: sqlite3.Connection) -> Any:
            return connection.execute("SELECT bill FROM bills WHERE key = ?", (key,)).fetchone()

        row = self._try(find)
        if row is None:
            return None
        told = json.loads(row[0])
        return Bill(told["parts"], told["grows"], source=told["source"])

    def keep_bill(self, key: str, bill: Bill) -> None:
        told = json.dumps({"parts": bill.parts, "grows": bill.grows, "source": bill.source})
        self._write("INSERT OR REPLACE INTO bills VALUES (?, ?, ?)", key, told, _now())

    def learn(self, profile: str, engine: str, device: str, planned_bytes: int, measured_bytes: int) -> None:
        """A load took so much; `planned_bytes` without what the driver takes for a process."""
        self._write(
            "INSERT INTO loads (profile, engine, device, planned, measured, at) VALUES (?, ?, ?, ?, ?, ?)",
            profile, engine, device, planned_bytes, measured_bytes, _now(),
        )  # fmt: skip
        self._write("DELETE FROM loads WHERE id <= (SELECT max(id) FROM loads) - ?", _KEPT_LOADS)

    def overhead_bytes(self, engine: str, device: str) -> int | None:
        """What a process took on this device beyond its plan: the most of the last 20 loads, None without any."""

        def find(connection: sqlite3.Connection) -> Any:
            return connection.execute(
                "SELECT max(measured - planned) FROM (SELECT * FROM loads WHERE engine = ? AND device = ? "
                "ORDER BY id DESC LIMIT 20)",
                (engine, device),
            ).fetchone()

        row = self._try(find)
        return max(0, row[0]) if row is not None and row[0] is not None else None

    def last_loads(self, profile: str) -> list[Load]:
        """The profile's last load, by device."""

        def find(connection: sqlite3.Connection) -> Any:
            return connection.execute(
                "SELECT device, planned, measured, at, max(id) FROM loads WHERE profile = ? GROUP BY device", (profile,)
            ).fetchall()

        return [Load(*row[:4]) for row in self._try(find) or ()]

    def lowered(self, key: str) -> Lowered | None:
        """How far down the ladder this launch begins, and why."""

        def find(connection: sqlite3.Connection) -> Any:
            return connection.execute("SELECT rung, why, at FROM rungs WHERE key = ?", (key,)).fetchone()

        row = self._try(find)
        return Lowered(*row) if row is not None else None

    def lower(self, key: str, profile: str, rung: int, why: str) -> bool:
        """From now on it begins at this rung; False where that could not be written down."""
        return self._write("INSERT OR REPLACE INTO rungs VALUES (?, ?, ?, ?, ?)", key, profile, rung, why, _now())

    def forget(self, profile: str) -> bool:
        """Let the profile begin at its wish again; whether it had been lowered."""

        def remove(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM rungs WHERE profile = ?", (profile,)).rowcount > 0

        return bool(self._try(remove))

    def _write(self, statement: str, *values: object) -> bool:
        return self._try(lambda connection: connection.execute(statement, values)) is not None

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """What the store answers; None where it cannot: a full disk must not keep a model from being loaded."""
        try:
            return self._store.run(work).result()
        except (sqlite3.Error, OSError, ConfigError) as error:
            log.warning("what is learned about memory cannot be kept or looked up: %s", error)
            return None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

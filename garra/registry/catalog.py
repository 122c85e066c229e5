"""The models on this machine, as garra knows them: files, hashes, where they are from, what they took."""

from __future__ import annotations

import datetime
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garra import paths
from garra.errors import ConfigError
from garra.registry.header import Header
from garra.registry.names import quant_of
from garra.registry.template import findings
from garra.store import Store

log = logging.getLogger(__name__)

_COLUMNS = (
    "ref, origin, path, n_bytes, revision, publisher, licence, base_model, facts, warnings, added, used, vram_bytes, "
    "ram_bytes, decode_tok_s"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of an artifact."""

    role: str
    """model, projector or draft."""
    path: str
    n_bytes: int
    sha256: str | None = None
    checked: str | None = None
    """When its hash was last found to hold."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model with all that belongs to it."""

    ref: str
    """As one names it: `hf:owner/repo:QUANT`, `file:/path`, `ollama:name:tag`."""
    origin: str
    """Whose store it is in: hub, index, ollama, lm-studio, llama.cpp, garraia, folder, bundle."""
    path: str
    """What the engine is given: the model file, of several shards the first."""
    n_bytes: int
    files: tuple[StoredFile, ...]
    revision: str = ""
    """The commit, where there is one."""
    publisher: str = ""
    licence: str = ""
    base_model: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """From the header: architecture, name, quantisation, context, parameters."""
    warnings: tuple[str, ...] = ()
    added: str = ""
    used: str | None = None
    """When an engine last became ready with it."""
    vram_bytes: int | None = None
    ram_bytes: int | None = None
    """What its last engine held when it was ready."""
    decode_tok_s: float | None = None
    """What its answers were last decoded at, all slots of a request counted alone."""

    @property
    def present(self) -> bool:
        """Whether all its files are still there."""
        return all(Path(file.path).is_file() for file in self.files)


def facts_of(header: Header) -> dict[str, Any]:
    """What people want to know of a model, from its header."""
    arch = header.text("general.architecture")
    return {
        "name": header.text("general.name")[:200],
        "architecture": arch[:60],
        "quantisation": quant_of(header.path.name) or "",
        "n_ctx_train": header.number(f"{arch}.context_length"),
        "n_parameters": header.n_parameters,
        "chat_template": bool(header.text("tokenizer.chat_template")),
    }


def warnings_of(header: Header) -> tuple[str, ...]:
    """What a person should know before this model speaks."""
    keys = [key for key in header.values if key.startswith("tokenizer.chat_template")]
    return tuple(dict.fromkeys(found for key in keys for found in findings(header.text(key))))


class Catalog:
    """Reads and writes of one store; every call blocks for its thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, one: Artifact) -> None:
        """Add it, or replace what was known under its reference; what was measured of it stays."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                f"INSERT INTO artifacts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL) "
                "ON CONFLICT (ref) DO UPDATE SET origin = excluded.origin, path = excluded.path, "
                "n_bytes = excluded.n_bytes, revision = excluded.revision, publisher = excluded.publisher, "
                "licence = excluded.licence, base_model = excluded.base_model, facts = excluded.facts, "
                "warnings = excluded.warnings",
                (one.ref, one.origin, one.path, one.n_bytes, one.revision, one.publisher, one.licence, one.base_model,
                 json.dumps(one.facts), json.dumps(one.warnings), one.added or now()),
            )  # fmt: skip
            (number,) = db.execute("SELECT id FROM artifacts WHERE ref = ?", (one.ref,)).fetchone()
            db.execute("DELETE FROM files WHERE artifact = ?", (number,))
            db.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
                [(number, file.role, file.path, file.n_bytes, file.sha256, file.checked) for file in one.files],
            )

        self._store.run(write).result()

    def keep_if_possible(self, one: Artifact) -> None:
        """The same for a model that has just come: where the catalog cannot be written, it is here all the same."""
        try:
            self.keep(one)
        except (sqlite3.Error, ConfigError) as error:
            log.warning("%s is not in the catalog: %s", one.ref, error)

    def all(self) -> list[Artifact]:
        """Every artifact, by reference."""
        return self._find("1 ORDER BY ref")

    def get(self, ref: str) -> Artifact | None:
        """By reference, or by the path of its model file."""
        found = self._find("ref = ? OR path = ? ORDER BY ref = ? DESC LIMIT 1", ref, ref.removeprefix("file:"), ref)
        return found[0] if found else None

    def forget(self, ref: str) -> bool:
        """Let go of what is known of it; its files stay where they are."""
        done = self._store.run(lambda db: db.execute("DELETE FROM artifacts WHERE ref = ?", (ref,)).rowcount)
        return done.result() > 0

    def checked(self, ref: str, hashes: Iterable[tuple[str, str]]) -> None:
        """These files' (path, sha256) were computed just now."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "UPDATE files SET sha256 = ?, checked = ? WHERE path = ? AND artifact = "
                "(SELECT id FROM artifacts WHERE ref = ?)",
                [(sha256, now(), path, ref) for path, sha256 in hashes],
            )

        self._store.run(write).result()

    def proved(self, sha256: str) -> bool:
        """Whether some file was found to have this hash before."""
        statement = "SELECT 1 FROM files WHERE sha256 = ? AND checked IS NOT NULL LIMIT 1"
        try:
            return self._store.run(lambda db: db.execute(statement, (sha256,)).fetchone()).result() is not None
        except (sqlite3.Error, ConfigError):
            return False

    def used(self, path: str, vram_bytes: int, ram_bytes: int) -> None:
        """An engine is ready with this file and holds so much."""
        self._note("UPDATE artifacts SET used = ?, vram_bytes = ?, ram_bytes = ? WHERE path = ?", now(), vram_bytes,
                   ram_bytes, path)  # fmt: skip

    def decoded(self, path: str, tok_s: float) -> None:
        """Its last answers came at this speed."""
        self._note("UPDATE artifacts SET decode_tok_s = ? WHERE path = ?", tok_s, path)

    def _note(self, statement: str, *values: object) -> None:
        """Written soon, or not at all: a full disk must not keep a model from being used. Never blocks."""

        def conclude(done: Future[sqlite3.Cursor]) -> None:
            if (error := done.exception()) is not None:
                log.warning("what is learned about models cannot be kept: %s", error)

        self._store.run(lambda db: db.execute(statement, values)).add_done_callback(conclude)

    def _find(self, where: str, *values: object) -> list[Artifact]:
        def read(db: sqlite3.Connection) -> list[Artifact]:
            rows = db.execute(f"SELECT id, {_COLUMNS} FROM artifacts WHERE {where}", values).fetchall()
            return [_artifact(row, db) for row in rows]

        return self._store.run(read).result()


@contextmanager
def opened() -> Iterator[Catalog]:
    """The catalog of this machine, for as long as the `with` lasts."""
    store = Store(paths.state_db())
    try:
        yield Catalog(store)
    finally:
        store.close()


def _artifact(row: tuple[Any, ...], db: sqlite3.Connection) -> Artifact:
    number, ref, origin, path, n_bytes, revision, publisher, licence, base, facts, warnings, *rest = row
    files = db.execute(
        "SELECT role, path, n_bytes, sha256, checked FROM files WHERE artifact = ? ORDER BY role != 'model', path",
        (number,),
    )
    return Artifact(
        ref, origin, path, n_bytes, tuple(StoredFile(*file) for file in files), revision, publisher, licence, base,
        json.loads(facts), tuple(json.loads(warnings)), *rest,
    )  # fmt: skip


def now() -> str:
    """This moment, as it is written down."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

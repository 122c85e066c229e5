"""What lasts: one database, many processes, no half writes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from garra import store as stores
from garra.bill import HOST, Bill
from garra.errors import ConfigError
from garra.ledger import Ledger
from garra.store import MIGRATIONS, Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    one = Store(path)
    yield one
    one.close()


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(number)


def test_a_fresh_file_is_migrated_and_in_wal_mode(store: Store, path: Path) -> None:
    mode = store.run(lambda connection: connection.execute("PRAGMA journal_mode").fetchone()[0]).result()
    assert mode == "wal"
    assert version(path) == len(MIGRATIONS)


def test_a_transaction_is_kept_whole_or_not_at_all(store: Store) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO rungs VALUES ('k', 'p', 1, 'w', 'now')")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        store.run(half).result()
    assert Ledger(store).lowered("k") is None


def test_a_newer_garras_file_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    one = Store(path)
    with pytest.raises(ConfigError, match="newer garra"):
        one.run(lambda connection: None).result()
    one.close()
    assert version(path) == len(MIGRATIONS) + 1


def test_a_damaged_file_is_put_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    one = Store(path)
    Ledger(one).lower("k", "p", 2, "why")
    one.close()
    assert path.with_suffix(".db.broken").read_bytes().startswith(b"this is no")
    again = Store(path)
    lowered = Ledger(again).lowered("k")
    again.close()
    assert lowered is not None
    assert (lowered.rung, lowered.why) == (2, "why")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    one = Store(tmp_path / "state" / "state.db")
    with pytest.raises((ConfigError, OSError)):
        one.run(lambda connection: None).result()
    one.close()


def test_an_older_file_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Store(path)
    Ledger(first).lower("k", "p", 1, "why")
    first.close()
    monkeypatch.setattr(stores, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE later (x INTEGER) STRICT"))
    second = Store(path)
    second.run(lambda connection: connection.execute("INSERT INTO later VALUES (1)")).result()
    assert Ledger(second).lowered("k") is not None
    second.close()
    assert version(path) == len(MIGRATIONS) + 1


WRITER = (
    "import sys\nfrom pathlib import Path\nfrom garra.ledger import Ledger\nfrom garra.store import Store\n"
    "store = Store(Path(sys.argv[1])); ledger = Ledger(store)\n"
    "for n in range(50): ledger.learn(sys.argv[2], 'e', 'gpu', 100, 100 + n)\n"
    "store.close()"
)


def test_several_processes_write_at_once(path: Path, store: Store) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    (count,) = store.run(lambda connection: connection.execute("SELECT count(*) FROM loads").fetchone()).result()
    assert count == 200


def test_bills_and_measurements_come_back(store: Store) -> None:
    ledger = Ledger(store)
    assert ledger.bill("x") is None
    bill = Bill({"CUDA0": {"weights": 5}, HOST: {"weights": 1}}, {"prompt cache": 3}, source="engine")
    ledger.keep_bill("x", bill)
    assert ledger.bill("x") == bill
    assert ledger.overhead_bytes("e", "gpu") is None
    for measured in (130, 150, 140):
        ledger.learn("p", "e", "gpu", 100, measured)
    assert ledger.overhead_bytes("e", "gpu") == 50, "the most it ever was: plans must hold"
    assert ledger.overhead_bytes("other engine", "gpu") is None


def test_a_profile_forgets_that_it_was_lowered(store: Store) -> None:
    ledger = Ledger(store)
    ledger.lower("k1", "p", 1, "out of memory")
    ledger.lower("k1", "p", 2, "again")
    ledger.lower("k2", "q", 1, "out of memory")
    lowered = ledger.lowered("k1")
    assert lowered is not None
    assert lowered.rung == 2
    assert ledger.forget("p")
    assert not ledger.forget("p")
    assert ledger.lowered("k1") is None
    assert ledger.lowered("k2") is not None


def test_a_store_that_cannot_be_used_costs_only_what_was_learned(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    one = Store(tmp_path / "state" / "state.db")
    ledger = Ledger(one)
    assert ledger.bill("x") is None
    assert ledger.overhead_bytes("e", "gpu") is None
    assert ledger.last_loads("p") == []
    ledger.keep_bill("x", Bill({HOST: {"weights": 1}}))
    assert not ledger.lower("k", "p", 1, "why"), "else the same rung would be tried for ever"
    assert not ledger.forget("p")
    one.close()

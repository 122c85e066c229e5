"""Files of slots: private, described, hashed; what is damaged is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garra.prompts.store import PromptStore
from garra.prompts.words import Kept


@pytest.fixture
def store(tmp_path: Path) -> PromptStore:
    return PromptStore(tmp_path / "prompts")


def written(
    store: PromptStore, text: bytes = b"cells" * 1000, name: str = "a.slot", *, checkpoints: bool = False
) -> Kept:
    (store.folder("demo") / name).write_bytes(text)
    if checkpoints:
        (store.folder("demo") / f"{name}.checkpoints").write_bytes(b"states")
    return store.add("demo", name, "f", 1000, (1, 2), 2.5)


def test_files_are_private_and_described(store: PromptStore) -> None:
    one = written(store, checkpoints=True)
    assert store.kept("demo") == store.kept() == [one]
    assert one.sizes == {"a.slot": 5000, "a.slot.checkpoints": 6}
    assert {path.stat().st_mode & 0o777 for path in store.folder("demo").iterdir()} == {0o600}
    assert store.folder("demo").stat().st_mode & 0o777 == 0o700
    assert store.holds(one)
    store.remove(one)
    assert list(store.folder("demo").iterdir()) == []


@pytest.mark.parametrize("which", ["a.slot", "a.slot.checkpoints"])
def test_a_flipped_bit_is_seen(store: PromptStore, which: str) -> None:
    one = written(store, checkpoints=True)
    file = store.folder("demo") / which
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert store.kept("demo") == [one]
    assert not store.holds(one)


@pytest.mark.parametrize("spoil", ["cut", "gone", "no json", "another name", "climbs", "huge"])
def test_what_is_damaged_is_removed(store: PromptStore, spoil: str) -> None:
    written(store, checkpoints=True)
    folder = store.folder("demo")
    about = folder / "a.slot.json"
    told = json.loads(about.read_text())
    match spoil:
        case "cut":
            (folder / "a.slot").write_bytes(b"cells")
        case "gone":
            (folder / "a.slot.checkpoints").unlink()
        case "no json":
            about.write_text("{")
        case "another name":
            about.write_text(json.dumps(told | {"name": "b.slot"}))
        case "climbs":
            about.write_text(
                json.dumps(told | {"sizes": {"a.slot": 5000, "../x": 1}, "digests": {"a.slot": "", "../x": ""}})
            )
        case "huge":
            about.write_text(json.dumps(told) + " " * (1 << 20))
    assert store.kept("demo") == []
    assert list(folder.iterdir()) == []


def test_what_no_description_speaks_of_is_swept(store: PromptStore) -> None:
    one = written(store)
    (store.folder("demo") / "half.slot").write_bytes(b"x")
    store.sweep("demo")
    assert sorted(path.name for path in store.folder("demo").iterdir()) == ["a.slot", "a.slot.json"]
    assert store.wipe() > 5000
    assert store.kept() == []
    assert not store.holds(one)

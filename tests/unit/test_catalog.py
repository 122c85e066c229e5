"""What is known of models: kept by reference, corrected, and what was measured of them stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from garra.registry import gguf
from garra.registry.catalog import Artifact, Catalog, StoredFile, facts_of
from garra.store import Store
from garra.tally import Tally
from garra.traffic import Usage
from tests import shapes
from tests.tiny_gguf import write


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    store = Store(tmp_path / "state.db")
    yield Catalog(store)
    store.close()


def artifact(tmp_path: Path, name: str = "m") -> Artifact:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(b"GGUF")
    files = (StoredFile("projector", str(tmp_path / "p.gguf"), 1), StoredFile("model", str(path), 4, "a" * 64))
    return Artifact(f"hf:o/{name}:Q8_0", "hub", str(path), 5, files, facts={"architecture": "llama"}, warnings=("w",))


def test_what_is_kept_comes_back_with_the_model_first(catalog: Catalog, tmp_path: Path) -> None:
    one = artifact(tmp_path)
    catalog.keep(one)
    found = catalog.get(one.ref)
    assert found is not None
    assert [file.role for file in found.files] == ["model", "projector"]
    assert (found.facts, found.warnings) == (one.facts, one.warnings)
    assert found.added
    assert not found.present, "its projector is not there"
    assert catalog.get(one.path) == found
    assert catalog.get(f"file:{one.path}") == found
    assert catalog.get("hf:o/other:Q8_0") is None


def test_keeping_it_again_replaces_files_and_keeps_what_was_measured(catalog: Catalog, tmp_path: Path) -> None:
    one = artifact(tmp_path)
    catalog.keep(one)
    catalog.used(one.path, 7, 8)
    catalog.decoded(one.path, 31.5)
    catalog.keep(replace(one, licence="mit", files=one.files[1:]))
    (found,) = catalog.all()
    assert (found.vram_bytes, found.ram_bytes, found.decode_tok_s) == (7, 8, 31.5)
    assert found.used
    assert found.licence == "mit"
    assert len(found.files) == 1


def test_hashes_are_taken_down_and_a_forgotten_model_leaves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    one, two = artifact(tmp_path), artifact(tmp_path, "n")
    catalog.keep(one)
    catalog.keep(two)
    catalog.checked(one.ref, [(one.files[0].path, "b" * 64)])
    found = catalog.get(one.ref)
    assert found is not None
    assert found.files[1].sha256 == "b" * 64
    assert found.files[1].checked
    assert catalog.forget(one.ref)
    assert not catalog.forget(one.ref)
    assert [left.ref for left in catalog.all()] == [two.ref]
    rows = catalog._store.run(lambda db: db.execute("SELECT count(*) FROM files").fetchone()).result()
    assert rows == (2,)


def test_facts_are_the_headers(tmp_path: Path) -> None:
    facts = facts_of(gguf.read(write(tmp_path / "x-Q4_K_M.gguf", shapes.llama(n_embd=256, n_ff=256))))
    assert facts["architecture"] == "llama"
    assert facts["quantisation"] == "Q4_K_M"
    assert facts["n_ctx_train"] == 32_768
    assert facts["chat_template"] is True
    assert facts["n_parameters"] > 100_000


def test_speed_is_averaged_over_answers_of_some_length() -> None:
    tally = Tally()
    tally.note(Usage(1, 5, 1.0, 1000.0), 0.0, 1.0, 1.0)
    assert tally.decode_tok_s is None
    tally.note(Usage(1, 101, 1.0, 1000.0), 0.0, 1.0, 1.0)
    assert tally.decode_tok_s == 100.0
    tally.note(Usage(1, 201, 1.0, 1000.0), 0.0, 1.0, 1.0)
    assert tally.decode_tok_s == 120.0

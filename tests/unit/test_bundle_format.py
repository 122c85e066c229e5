"""What a bundle's first member may say: nothing in it becomes a path or a line of TOML unseen."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from garra.bundling import format as bundles
from garra.bundling.format import Manifest, Member, PackedModel
from garra.errors import BadModel, Refused

MODEL: dict[str, Any] = {
    "profile": "demo", "ref": "hf:o/r:Q8_0", "members": ["models/0/m.gguf"], "roles": ["model"], "commit": "c" * 40,
    "paths": ["sub/m.gguf"], "table": {"context": 512},
}  # fmt: skip


def bundle(folder: Path, told: Any, name: str = bundles.MANIFEST) -> Path:
    path = folder / "b.tar"
    content = msgspec.json.encode(told)
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return path


def manifest(**changes: Any) -> dict[str, Any]:
    model = msgspec.convert(MODEL, PackedModel)
    files = {"models/0/m.gguf": Member("a" * 64, 7)}
    told: dict[str, Any] = msgspec.to_builtins(Manifest("0", "linux-x86_64", "3.11", "sources", (model,), files))
    return told | changes


def test_a_sound_one_is_read(tmp_path: Path) -> None:
    with bundles.opened(bundle(tmp_path, manifest())) as (read, _):
        assert read.models[0].paths == ("sub/m.gguf",)
        assert read.n_bytes == 7


@pytest.mark.parametrize(
    "model",
    [
        {"profile": "a]\nport = 1"}, {"profile": "../x"}, {"commit": "../../../etc"}, {"commit": "main"},
        {"paths": ["../../x.gguf"]}, {"paths": ["/etc/x.gguf"]}, {"paths": []}, {"members": []},
        {"members": ["models/1/other.gguf"]}, {"roles": []}, {"table": {"a = 1\nb": 2}},
    ],
)  # fmt: skip
def test_a_model_with_tricks_is_refused(tmp_path: Path, model: dict[str, Any]) -> None:
    with pytest.raises(Refused), bundles.opened(bundle(tmp_path, manifest(models=[MODEL | model]))):
        pass


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"engine": "../../engines"}, Refused),
        ({"files": {"../x": {"sha256": "a", "n_bytes": 1}}, "models": []}, Refused),
        ({"files": {"x": {"sha256": "a", "n_bytes": -1}}, "models": []}, Refused),
        ({"format": 2}, Refused),
        ({"files": 5}, BadModel),
        ({"models": "all"}, BadModel),
    ],
)
def test_a_manifest_with_tricks_is_refused(tmp_path: Path, changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error), bundles.opened(bundle(tmp_path, manifest(**changes))):
        pass


def test_what_does_not_begin_with_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="does not begin with"), bundles.opened(bundle(tmp_path, {}, name="other")):
        pass

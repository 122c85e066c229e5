"""Stores of other programs, made by hand the way those programs make them: found, told apart, left alone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests import shapes, tiny_gguf
from tests.registry.conftest import cache, garra, garra_json, gguf_bytes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def ollama(root: Path, name: str, layers: dict[str, bytes], tag: str = "latest") -> dict[str, Path]:
    """One model in Ollama's store."""
    blobs, told = {}, []
    for kind, content in layers.items():
        digest = hashlib.sha256(content).hexdigest()
        path = root / "blobs" / f"sha256-{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        blobs[kind] = path
        media = f"application/vnd.ollama.image.{kind}"
        told.append({"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)})
    manifest = root / "manifests" / "registry.ollama.ai" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": told}))
    return blobs


def hub_cache(root: Path, repo: str, files: dict[str, bytes]) -> Path:
    """One repository in a Hugging Face cache."""
    base = root / f"models--{repo.replace('/', '--')}"
    snapshot = base / "snapshots" / ("d" * 40)
    for name, content in files.items():
        blob = base / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def state_of(root: Path) -> dict[str, tuple[int, int]]:
    """Everything that writing to a store would change."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in root.rglob("*")}


def test_every_store_is_found_and_none_is_touched(home: Path) -> None:
    projector = gguf_bytes(9)
    layers = {"model": gguf_bytes(1), "projector": projector, "license": b"Apache License\nand more", "params": b"{}"}
    blobs = ollama(home / ".ollama" / "models", "library/qwen3.5", layers, "4b")
    ollama(home / ".ollama" / "models", "someone/tuned", {"model": gguf_bytes(2)})
    snapshot = hub_cache(cache(), "owner/repo", {"sub/M-Q4_K_M.gguf": gguf_bytes(3), "mmproj-F16.gguf": projector})
    studio = home / ".lmstudio" / "models" / "publisher" / "Model-GGUF"
    flat = cache().parent.parent / "llama.cpp"
    garraia = home / ".garraia" / "models" / "deep" / "er"
    for folder in (studio, flat, garraia):
        folder.mkdir(parents=True)
    (studio / "Model-Q8_0.gguf").write_bytes(gguf_bytes(4))
    (studio / "mmproj-Model-F16.gguf").write_bytes(projector)
    (flat / "ggml-org_models_tiny-Q4_0.gguf").write_bytes(gguf_bytes(5))
    (flat / "ggml-org_models_tiny-Q4_0.gguf.etag").write_text("x")
    (garraia / "own.gguf").write_bytes(gguf_bytes(6))
    before = state_of(home) | state_of(cache())

    told = {one["ref"]: one for one in garra_json("models", "import")}
    assert {ref: one["origin"] for ref, one in told.items()} == {
        "ollama:qwen3.5:4b": "ollama",
        "ollama:someone/tuned:latest": "ollama",
        "hf:owner/repo:Q4_K_M": "huggingface",
        f"file:{studio}/Model-Q8_0.gguf": "lm-studio",
        f"file:{flat}/ggml-org_models_tiny-Q4_0.gguf": "llama.cpp",
        f"file:{garraia}/own.gguf": "garraia",
    }
    assert all(one["usable"] for one in told.values())
    four = told["ollama:qwen3.5:4b"]["artifact"]
    assert [(file["role"], file["path"]) for file in four["files"]] == [
        ("model", str(blobs["model"])),
        ("projector", str(blobs["projector"])),
    ]
    assert four["files"][0]["sha256"] == hashlib.sha256(layers["model"]).hexdigest()
    assert four["licence"] == "Apache License"
    assert [file["role"] for file in told[f"file:{studio}/Model-Q8_0.gguf"]["artifact"]["files"]] == [
        "model",
        "projector",
    ]
    assert told["hf:owner/repo:Q4_K_M"]["artifact"]["path"] == str(snapshot / "sub" / "M-Q4_K_M.gguf")
    assert told[f"file:{flat}/ggml-org_models_tiny-Q4_0.gguf"]["artifact"]["publisher"] == "ggml-org"
    assert state_of(home) | state_of(cache()) == before
    assert len(garra_json("models", "list")) == 6
    assert {one["state"] for one in garra_json("models", "verify")} == {"ok"}


def test_what_no_engine_could_load_is_told_with_the_reason(home: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    inside = shapes.llama(kind="F32")
    inside = tiny_gguf.Model(
        inside.arch, inside.n_vocab, inside.values, {**inside.tensors, "v.blk.0.attn_q.weight": (8, 8)}, kind="F32"
    )
    vision = tiny_gguf.write(tmp_path / "vision.gguf", inside, seed=1).read_bytes()
    ollama(store, "library/old-vision", {"model": vision})
    ollama(store, "library/gone", {"model": gguf_bytes(1)})["model"].unlink()
    ollama(store, "library/cut", {"model": gguf_bytes(2)[:100_000]})
    ollama(store, "library/good", {"model": gguf_bytes(3)})
    (store / "manifests" / "registry.ollama.ai" / "library" / "junk").mkdir()
    (store / "manifests" / "registry.ollama.ai" / "library" / "junk" / "x").write_text('{"layers": [{"digest": 5}]}')
    os.environ["OLLAMA_MODELS"] = str(store)
    try:
        told = {one["ref"]: one for one in garra_json("models", "import", "ollama")}
        listed = [one["ref"] for one in garra_json("models", "list")]
    finally:
        del os.environ["OLLAMA_MODELS"]
    assert "only Ollama's own engine reads" in told["ollama:old-vision:latest"]["problem"]
    assert told["ollama:gone:latest"]["problem"] == "the file is gone"
    assert "bytes are missing" in told["ollama:cut:latest"]["problem"]
    assert listed == ["ollama:good:latest"]


def test_a_manifest_cannot_point_outside_its_store(home: Path) -> None:
    store = home / ".ollama" / "models"
    ollama(store, "library/m", {"model": gguf_bytes(1)})
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    told = json.loads(manifest.read_text())
    told["layers"][0]["digest"] = "sha256:../../../../etc/passwd"
    manifest.write_text(json.dumps(told))
    assert garra_json("models", "import", "ollama", "--dry-run") == []


def test_a_folder_with_shards_is_one_model_and_an_incomplete_set_none(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    shards = tiny_gguf.write_shards(folder / "big-Q8_0.gguf", shapes.llama(kind="F32"), seed=1)
    assert len(shards) == 2
    told = garra_json("models", "import", str(folder))
    assert [one["ref"] for one in told] == [f"file:{shards[0]}"]
    assert told[0]["artifact"]["n_bytes"] == sum(path.stat().st_size for path in shards)
    shards[1].unlink()
    assert garra("models", "import", str(folder), "--json").stdout.strip() == "[]"


def test_a_file_that_vanishes_is_reported(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "x.gguf"
    path.parent.mkdir()
    path.write_bytes(gguf_bytes(1))
    assert garra("models", "import", str(path)).returncode == 0
    path.unlink()
    assert garra_json("models", "list")[0]["present"] is False
    assert "file is gone" in garra("models", "list").stdout
    assert "GONE" in garra("models", "show", f"file:{path}").stdout
    verified = garra("models", "verify")
    assert verified.returncode == 4
    assert "gone" in verified.stdout
    removed = garra("models", "rm", f"file:{path}")
    assert removed.returncode == 0
    assert garra_json("models", "list") == []


def test_a_copy_stays_when_theirs_goes(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = tmp_path / "mine" / "x.gguf"
    path.parent.mkdir()
    path.write_bytes(gguf_bytes(1))
    assert garra("models", "import", str(path), "--copy").returncode == 0
    path.unlink()
    (one,) = garra_json("models", "list")
    assert one["present"]
    assert Path(one["path"]).read_bytes() == gguf_bytes(1)
    assert garra("models", "rm", one["ref"]).returncode == 0
    assert not Path(one["path"]).exists()


def test_what_a_profile_names_is_listed_whoever_brought_it(home: Path, tmp_path: Path) -> None:
    projector = gguf_bytes(9)
    snapshot = hub_cache(cache(), "owner/repo", {"M-Q4_K_M.gguf": gguf_bytes(3), "mmproj-F16.gguf": projector})
    shards = tiny_gguf.write_shards(tmp_path / "big-Q8_0.gguf", shapes.llama(kind="F32"), seed=1)
    ollama(home / ".ollama" / "models", "library/m", {"model": gguf_bytes(4)})
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "garra"
    folder.mkdir()
    refs = {"a": "hf:owner/repo:q4_k_m", "b": f"file:{shards[0]}", "c": "ollama:m", "d": "file:/nowhere.gguf"}
    (folder / "profiles.toml").write_text("".join(f'[profiles.{k}]\nmodel = "{v}"\n' for k, v in refs.items()))
    listed = {tuple(one["profiles"]): one for one in garra_json("models", "list")}
    assert listed[("a",)]["path"] == str(snapshot / "M-Q4_K_M.gguf")
    assert [file["role"] for file in listed[("a",)]["files"]] == ["model", "projector"]
    assert [file["path"] for file in listed[("b",)]["files"]] == [str(path) for path in shards]
    assert listed[("c",)]["origin"] == "ollama"
    assert ("d",) not in listed
    assert garra_json("models", "show", "a")["ref"] == "hf:owner/repo:Q4_K_M"


def test_damage_is_found(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "x.gguf"
    path.parent.mkdir()
    path.write_bytes(gguf_bytes(1))
    garra("models", "import", str(path))
    assert garra_json("models", "verify")[0]["state"] == "ok", "the first time its hash is taken down"
    path.write_bytes(gguf_bytes(2))
    done = garra("models", "verify", f"file:{path}")
    assert done.returncode == 4
    assert "DAMAGED" in done.stdout


def test_a_template_with_tricks_is_shown(home: Path, tmp_path: Path) -> None:
    evil = tiny_gguf.CHATML + "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    path = tiny_gguf.write(tmp_path / "evil.gguf", shapes.llama(kind="F32"), seed=1, template=evil)
    garra("models", "import", str(path))
    shown = garra("models", "show", f"file:{path}")
    assert "warning      the chat template reaches for Python's internals: __class__" in shown.stdout
    assert garra("models", "show", f"file:{path}", "--template").stdout.strip() == evil

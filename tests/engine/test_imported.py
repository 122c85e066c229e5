"""The demo model as other programs keep it: found where it is, and a real answer from each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from garra.registry.courier import Courier
from tests.support import Garra, Json, eventually


def link(target: Path, path: Path) -> Path:
    """The model there, without a copy where the file system lets us."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(target, path)
    except OSError:
        path.symlink_to(target)
    return path


@pytest.fixture
def stores(demo_model: Path, tmp_path: Path, private_folders: Path) -> dict[str, str]:
    """Stores made the way their programs make them; references by name of the profile."""
    with Courier() as courier:
        sha256 = courier.ask("hash", paths=[str(demo_model)])[str(demo_model)]
    ollama = tmp_path / ".ollama" / "models"
    link(demo_model, ollama / "blobs" / f"sha256-{sha256}")
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "smollm2" / "135m"
    manifest.parent.mkdir(parents=True)
    kind = "application/vnd.ollama.image.model"
    manifest.write_text(json.dumps({"layers": [{"mediaType": kind, "digest": f"sha256:{sha256}", "size": 1}]}))
    repo = private_folders / "cache_home" / "huggingface" / "hub" / "models--owner--SmolLM2-GGUF"
    link(demo_model, repo / "blobs" / sha256)
    snapshot = repo / "snapshots" / ("e" * 40) / "SmolLM2-135M-Instruct-Q4_1.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(f"../../blobs/{sha256}")
    flat = link(demo_model, private_folders / "cache_home" / "llama.cpp" / "owner_smollm2_q4_1.gguf")
    studio = link(demo_model, tmp_path / ".lmstudio" / "models" / "owner" / "SmolLM2" / "SmolLM2-Q4_1.gguf")
    return {
        "from_ollama": "ollama:smollm2:135m",
        "from_hub": "hf:owner/SmolLM2-GGUF:q4_1",
        "from_llama": f"file:{flat}",
        "from_studio": f"file:{studio}",
    }


def test_a_real_answer_from_every_store(stores: dict[str, str], tmp_path: Path, private_folders: Path) -> None:
    table = (
        'mode = "low_latency"\nslots = 1\ncontext = 512\nbatch = 128\nubatch = 128\ncache_ram_mib = 0\ngpu_layers = 0\n'
    )
    text = "".join(f'[profiles.{name}]\nmodel = "{ref}"\n{table}' for name, ref in stores.items())
    garra = Garra(HOME=str(tmp_path), XDG_CACHE_HOME=str(private_folders / "cache_home")).configure(text)
    garra.env["XDG_DATA_HOME"] = os.environ.get("XDG_DATA_HOME", os.path.expanduser("~/.local/share"))
    try:
        found: list[Json] = json.loads(garra.run("models", "import", "--json", check=True).stdout)
        assert [one["origin"] for one in found] == ["huggingface", "ollama", "llama.cpp", "lm-studio"]
        assert all(one["usable"] for one in found)
        garra.up("from_ollama")
        for name in stores:
            asked = {
                "model": name,
                "max_tokens": 24,
                "ignore_eos": True,
                "temperature": 0,
                "messages": [{"role": "user", "content": "Hi!"}],
            }
            reply = httpx.post(f"{garra.url}/v1/chat/completions", json=asked, timeout=180)
            assert reply.status_code == 200, reply.text
            assert reply.json()["choices"][0]["message"]["content"].strip()
        garra.run("unload", "from_ollama")

        def shown() -> Json:
            told: Json = json.loads(garra.run("models", "show", "ollama:smollm2:135m", "--json", check=True).stdout)
            return told

        eventually(lambda: shown()["used"] and shown()["ram_bytes"] > 50 << 20)
        eventually(lambda: (shown()["decode_tok_s"] or 0) > 1)
        assert shown()["profiles"] == ["from_ollama"]
    finally:
        garra.close()

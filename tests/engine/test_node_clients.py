"""The SDKs for Node.js against the demo model, from the package registry, pinned in tests/clients."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import Garra

CLIENTS = Path(__file__).resolve().parents[1] / "clients"


@pytest.fixture(scope="module")
def told(served: Garra) -> dict[str, Any]:
    """What each SDK saw."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no Node.js here")
    install = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(CLIENTS)]
    if not (CLIENTS / "node_modules" / ".package-lock.json").exists():
        subprocess.run(install, check=True, capture_output=True, timeout=300)
    command = [node, str(CLIENTS / "sdks.mjs"), served.url, "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama", "vercel"])
def test_an_sdk_asks_streams_and_is_refused(told: dict[str, Any], name: str) -> None:
    seen = told[name]
    assert seen["whole"]
    assert seen["streamed"]
    assert seen["unknown"] == 404


def test_what_they_make_of_it(told: dict[str, Any]) -> None:
    assert told["openai"]["response"]
    assert told["openai"]["usage"] == 6
    assert "demo" in told["openai"]["models"]
    assert told["anthropic"]["stop"] in ("max_tokens", "end_turn")
    assert told["anthropic"]["tokens"] > 5
    assert told["ollama"]["done"] is True
    assert told["ollama"]["context"] == 8192
    assert told["ollama"]["models"] == ["demo:latest"]
    assert told["vercel"]["reason"] in ("length", "stop")
    assert told["vercel"]["tokens"] in range(1, 7)

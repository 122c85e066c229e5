"""No network, by wish or by fact: nothing is asked of it, and what is missing is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import garra, gguf_bytes, visible

GUARD = """
import sys

def refuse(event, args):
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(args[1], tuple)):
        with open({log!r}, "a") as log:
            log.write(f"{{event}} {{args[1]}}\\n")
        raise OSError("the test denies sockets")

sys.addaudithook(refuse)
"""


@pytest.fixture
def denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of sockets that any Python process tried to open from here on; all of them are denied."""
    log = tmp_path / "sockets"
    (tmp_path / "sitecustomize.py").write_text(GUARD.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return log


@pytest.mark.parametrize("words", [("models", "pull", "hf:o/r:Q8_0"), ("models", "search", "r"), ("pull", "hub")])
def test_offline_mode_asks_nothing(hub: FakeHub, denied: Path, words: tuple[str, ...]) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()})
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "garra"
    folder.mkdir(exist_ok=True)
    (folder / "profiles.toml").write_text('[profiles.hub]\nmodel = "hf:o/r:Q8_0"\n')
    done = garra(*words, HF_HUB_OFFLINE="1")
    assert done.returncode == 9
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert ("o/r is not on this machine" in done.stderr) or words[1] == "search"
    assert not denied.exists(), denied.read_text()
    assert hub.requests == []


def test_the_guard_of_this_test_sees_what_goes_out(hub: FakeHub, denied: Path) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()})
    done = garra("models", "search", "r")
    assert done.returncode == 9
    assert "socket.getaddrinfo" in denied.read_text()


def test_what_is_here_needs_no_network(hub: FakeHub, denied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()})
    monkeypatch.delenv("PYTHONPATH")
    assert garra("models", "pull", "hf:o/r:Q8_0").returncode == 0
    monkeypatch.setenv("PYTHONPATH", str(denied.parent))
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "garra"
    folder.mkdir(exist_ok=True)
    (folder / "profiles.toml").write_text('[profiles.hub]\nmodel = "hf:o/r:Q8_0"\n')
    done = garra("pull", "hub", HF_HUB_OFFLINE="1")
    assert done.returncode == 0
    assert Path(done.stdout.strip()) in visible()
    assert not denied.exists()

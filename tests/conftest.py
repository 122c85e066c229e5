"""Every test runs in private config, state and runtime folders; the data folder (engines, models) is shared, so that
nothing is built or downloaded twice. No test may leave a child process behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder (sockets!) that holds this test's XDG folders; no GARRA_* from outside reaches the test."""
    root = Path(tempfile.mkdtemp(prefix="gt-"))
    for name in ("CONFIG_HOME", "STATE_HOME", "RUNTIME_DIR", "CACHE_HOME"):
        folder = root / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(folder))
    for variable in list(os.environ):
        if variable.startswith("GARRA_") and not variable.startswith("GARRA_TEST_"):
            monkeypatch.delenv(variable)
    for variable in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "OLLAMA", "LLAMA_"))]:
        monkeypatch.delenv(variable)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """Fails the test that leaves a process behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    names = [f"{child.name()} ({child.pid}, {child.status()})" for child in left]
    for child in left:
        child.kill()
    psutil.wait_procs(left, 5)
    assert not names, f"left behind: {names}"


@pytest.fixture
def soak() -> bool:
    """Whether the long random runs go their full length (`make soak`)."""
    return os.environ.get("GARRA_TEST_SOAK") == "1"

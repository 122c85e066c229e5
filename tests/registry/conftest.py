"""Downloads from a hub that misbehaves, with the real client and the real worker."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import shapes, tiny_gguf
from tests.fake_hub import FakeHub

Run = Callable[..., subprocess.CompletedProcess[str]]


@functools.cache
def _model() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tiny_gguf.write(Path(folder) / "m.gguf", shapes.llama(kind="F32"), seed=1).read_bytes()


def gguf_bytes(number: int = 0, more: int = 0) -> bytes:
    """A real little model of about 0.6 MB, no two numbers alike; `more` bytes of padding at its end."""
    return _model()[:-8] + number.to_bytes(8, "little") + bytes(more)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub without repositories; everything started from here on asks it."""
    with FakeHub() as one:
        for name, value in one.environment().items():
            monkeypatch.setenv(name, value)
        yield one


def garra(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`garra WORDS` to its end."""
    command = [sys.executable, "-m", "garra", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False
    )


def garra_json(*words: str) -> Any:
    """What `garra WORDS --json` prints."""
    done = garra(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cache() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "huggingface" / "hub"


def visible() -> list[Path]:
    """Everything anybody could take for a model: snapshot entries, and blobs under their final name."""
    entries = [path for path in cache().glob("models--*/snapshots/**/*") if not path.is_dir()]
    blobs = [path for path in cache().glob("models--*/blobs/*") if not path.name.endswith(".garra-part")]
    return entries + blobs

"""A garra in front of the C stub engine, for measuring what garra itself does."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from garra.engine import smoke, store
from garra.engine.source import load_pin
from garra.spec import EngineBuild
from tests.support import Garra

HERE = Path(__file__).resolve().parent


def compile_tool(name: str, folder: Path) -> Path:
    """One of the C programs beside this file."""
    out = folder / name
    subprocess.run(["cc", "-O2", "-o", str(out), str(HERE / f"{name}.c")], check=True)
    return out


@contextlib.contextmanager
def stubbed(settings: str, **environment: str) -> Iterator[Garra]:
    """A garra with `demo` READY whose engine is the stub; `settings` are lines of its `[profiles.demo]` table."""
    with tempfile.TemporaryDirectory(prefix="gb-") as name:
        folder = Path(name)
        engine = folder / "data" / "garra" / "engines" / "stub"
        (engine / "bin").mkdir(parents=True)
        shutil.copy(compile_tool("stub_engine", folder), engine / "bin" / "llama-server")
        pin = load_pin()
        store.write_manifest(engine, EngineBuild("stub", pin.build, engine, "cpu", pin.names_of_patches))
        (engine.parent / "current").symlink_to("stub")
        model = smoke.write_noise_model(folder / "noise.gguf")
        garra = Garra(data=folder / "data", **environment).configure(
            f'[profiles.demo]\nmodel = "file:{model}"\n{settings}'
        )
        try:
            yield garra.up("demo")
        finally:
            garra.close()

"""Real engines. The first test builds one if this machine has none (about 5 minutes), and fetches the demo model."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from garra import config
from garra.cli.engine import build_if_missing
from garra.engine import smoke, store
from garra.engine.source import load_pin
from garra.registry import fetch
from garra.spec import EngineBuild
from tests import stub_engine
from tests.stub_driver import StubDriver
from tests.support import Garra

Make = Callable[..., Garra]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/engine" in str(item.path):
            item.add_marker("engine")


@pytest.fixture(scope="session")
def engine_build() -> EngineBuild:
    build_if_missing(print)
    return store.current()


@pytest.fixture(scope="session")
def demo_model(engine_build: EngineBuild) -> Path:
    return fetch.ensure(config.load().profiles["demo"], print)


@pytest.fixture
def garra(demo_model: Path) -> Iterator[Garra]:
    """A garra that is not started yet."""
    one = Garra()
    yield one
    one.close()


@pytest.fixture(scope="module")
def served(demo_model: Path) -> Iterator[Garra]:
    """One garra with `demo` READY, shared by the tests of a file that only talk to it."""
    one = Garra().up("demo")
    yield one
    one.close()


@pytest.fixture
def stubbed(tmp_path: Path) -> Iterator[Make]:
    """Makes a garra whose engine is the stub in the given mood. `settings` are lines of the profile demo, `top` lines
    above all tables; there is a second profile, other. With a `driver` it computes on the GPUs that driver shows;
    `base` replaces the lines both profiles have."""
    folder = tmp_path / "garra" / "engines" / "stub"
    (folder / "bin").mkdir(parents=True)
    server = folder / "bin" / "llama-server"
    server.write_text(f"#!{sys.executable}\n" + Path(stub_engine.__file__).read_text())
    server.chmod(0o755)
    pin = load_pin()
    (folder.parent / "current").symlink_to("stub")
    model = smoke.write_noise_model(tmp_path / "noise.gguf")
    made: list[Garra] = []

    def make(
        mood: str,
        settings: str = "",
        top: str = "",
        *,
        driver: StubDriver | None = None,
        base: str | None = None,
        **environment: str,
    ) -> Garra:
        backend = "cpu" if driver is None else "cuda"
        build = EngineBuild("stub", pin.build, folder, backend, pin.names_of_patches)
        store.write_manifest(folder, build)
        one = Garra(data=tmp_path, STUB=mood, **environment, **(driver.environment() if driver is not None else {}))
        table = base or f'model = "file:{model}"\nstop_grace_s = 1\nload_timeout_s = 2\ncontext = 512\n'
        one.configure(f"{top}\n[profiles.demo]\n{table}{settings}\n[profiles.other]\n{table}")
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
    shutil.rmtree(tmp_path, ignore_errors=True)

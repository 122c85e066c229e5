"""Real engines. The first test builds one if this machine has none (about 5 minutes), and fetches the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from garra import config
from garra.cli.engine import build_if_missing
from garra.engine import store
from garra.registry import fetch
from garra.spec import EngineBuild
from tests.support import Garra


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

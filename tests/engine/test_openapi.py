"""schemathesis over garra's own document: no 500, nothing undocumented, every error in the form it should have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine.noise import three_kinds
from tests.support import Garra

EXAMPLES = 300 if os.environ.get("GARRA_TEST_SOAK") else 25
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def served(engine_build: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Garra]:
    one = three_kinds(tmp_path_factory.mktemp("models"), "slots = 2\nthreads = 1\ncontext = 1024\nmax_tokens = 4\n")
    yield one
    one.close()


def test_the_document_is_served(served: Garra) -> None:
    told = httpx.get(f"{served.url}/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert "/v1/chat/completions" in told["paths"]
    assert "demo" in str(told["paths"]["/v1/chat/completions"])


@pytest.mark.timeout(1800)
def test_schemathesis_finds_nothing(served: Garra, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    command = [
        str(program), "run", f"{served.url}/openapi.json", "--checks", CHECKS, "--max-examples", str(EXAMPLES),
        "--seed", "1", "--workers", "1",  # Python 3.11's compiler stumbles where threads use it at once (gh-106905)
        "--phases", "examples,coverage,fuzzing", "--no-color",
        "--exclude-path", "/v1/models", "--request-timeout", "60",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-8000:]
    assert served.engine()["restarts"] == 0
    assert [line for line in served.said.splitlines() if "a bug in garra" in line] == []

"""`garra up turbo_4b` on a file with the full shape of Qwen3.5-4B: it starts, and is what was planned."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests import shapes
from tests.support import Garra
from tests.tiny_gguf import write

NEEDED_BYTES = 9 * 1024**3


@pytest.fixture(scope="module")
def sparse_4b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sparse") / "Qwen3.5-4B-Q4_K_M.gguf", shapes.qwen35_4b())


def test_the_file_has_the_shape_and_no_weight(sparse_4b: Path) -> None:
    seen = sparse_4b.stat()
    assert 2.3e9 < seen.st_size < 2.8e9
    assert seen.st_blocks * 512 < 32e6


@pytest.mark.timeout(420)
def test_up_turbo_4b_is_ready_and_as_planned(garra: Garra, sparse_4b: Path) -> None:
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip("needs 9 GiB of RAM: the repacked weights of a 4B model and 64k of cache")
    garra.configure(f'[profiles.turbo_4b]\nmodel = "file:{sparse_4b}"').up("turbo_4b")
    assert garra.engine("turbo_4b")["phase"] == "ready"
    props = garra.ask_engine("GET", "/props")
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 32768
    assert props["model_path"] == str(sparse_4b)
    assert garra.engine("turbo_4b")["slot_context"] == 32768
    log = garra.engine_log("turbo_4b")
    assert "--spec-type draft-mtp --spec-draft-n-max 2" in log
    assert "creating MTP draft context" in log or "draft-mtp" in log.split("\n", 1)[1]
    answer = garra.ask_engine("POST", "/completion", {"prompt": "x", "n_predict": 2})
    assert answer["tokens_predicted"] >= 1

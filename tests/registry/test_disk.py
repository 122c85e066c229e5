"""A disk that is full, before a download and in the middle of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import gguf_bytes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")

FULL_FROM_THE_START = """
mount -t tmpfs -o size=20m none "$HF_HOME"
{garra} models pull hf:o/r:Q8_0; echo "ended $?"
find "$HF_HOME" -name '*.garra-part' -size +64k | wc -l
"""

FULL_IN_THE_MIDDLE = """
mount -t tmpfs -o size=80m none "$HF_HOME"
{garra} models pull hf:o/r:Q8_0 & pull=$!
until [ -n "$(find "$HF_HOME" -name '*.garra-part' -size +2000k)" ]; do kill -0 $pull || break; done
dd if=/dev/zero of="$HF_HOME/filler" bs=64k 2>/dev/null
wait $pull; echo "ended $?"
echo "kept $(find "$HF_HOME" -name '*.garra-part' -size +2000k | wc -l)"
echo "visible $(find "$HF_HOME" -path '*snapshots*' -name '*.gguf' | wc -l)"
rm "$HF_HOME/filler"
{garra} models pull hf:o/r:Q8_0; echo "then $?"
cmp "$MODEL" "$(find "$HF_HOME" -path '*snapshots*' -name '*.gguf')" && echo "the same"
"""


STATE_FULL = """
mount -t tmpfs -o size=64k none "$XDG_STATE_HOME"
dd if=/dev/zero of="$XDG_STATE_HOME/filler" bs=4k 2>/dev/null
{garra} models pull hf:o/r:Q8_0; echo "ended $?"
find "$HF_HOME" -path '*snapshots*' -name '*.gguf' | wc -l
"""


def in_a_namespace(script: str, home: Path, **environment: str) -> str:
    """What the script says, run where its mounts are seen by nobody else."""
    home.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script.format(garra=f"{sys.executable} -m garra")],
        env=os.environ | environment | {"HF_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout


def test_space_is_checked_before_a_download(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes(1, more=30 << 20)})
    said = in_a_namespace(FULL_FROM_THE_START, tmp_path / "hf")
    assert "ended 9" in said
    assert "cannot" in said
    assert "free" in said
    assert hub.bytes_sent("M-Q8_0.gguf") < 20 << 20


def test_a_disk_that_fills_up_keeps_what_came(hub: FakeHub, tmp_path: Path) -> None:
    content = gguf_bytes(1, more=12 << 20)
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": content}, rate=3 << 20)
    model = tmp_path / "m.gguf"
    model.write_bytes(content)
    said = in_a_namespace(FULL_IN_THE_MIDDLE, tmp_path / "hf", MODEL=str(model))
    assert "ended 9" in said, said
    assert "No space left on device; what has come is kept" in said
    assert "kept 1" in said
    assert "visible 0" in said
    assert "then 0" in said
    assert "the same" in said
    assert "Traceback" not in said
    assert hub.sent["M-Q8_0.gguf"][-1][0] > 2_000_000, "the second one went on where the first had stopped"


def test_a_catalog_that_cannot_be_written_costs_no_model(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes(1)})
    said = in_a_namespace(STATE_FULL, tmp_path / "hf")
    assert "Traceback" not in said
    assert "a bug in garra" not in said
    assert "ended 0\n1" in said, said

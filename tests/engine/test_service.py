"""garra as a service: what systemd is told, and a real start, kill, restart and stop."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests import user_systemd
from tests.engine.conftest import Make
from tests.support import Garra, alive, eventually
from tests.user_systemd import UserSystemd

EXPOSURE = re.compile(r"Overall exposure level for \S+: ([0-9.]+)")


class FakeManager:
    """The socket systemd would listen on."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.address))
        self._socket.setblocking(False)
        self.told: list[str] = []

    def hear(self) -> list[str]:
        """All lines so far."""
        while True:
            try:
                self.told += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.told

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[FakeManager]:
    folder = Path(tempfile.mkdtemp(prefix="gn-"))
    one = FakeManager(folder)
    yield one
    one.close()
    shutil.rmtree(folder)


def test_ready_means_that_a_model_serves(stubbed: Make, manager: FakeManager) -> None:
    garra = stubbed("deaf", NOTIFY_SOCKET=str(manager.address))
    garra.start("demo")
    eventually(lambda: any("demo loading" in line for line in manager.hear()))
    eventually(lambda: garra.exited)
    assert "READY=1" not in manager.hear()
    assert "STOPPING=1" in manager.hear()


def test_signs_of_health_end_when_the_loop_stands_still(stubbed: Make, manager: FakeManager) -> None:
    garra = stubbed("late", NOTIFY_SOCKET=str(manager.address), WATCHDOG_USEC="600000")
    garra.up("demo")
    eventually(lambda: "READY=1" in manager.hear() and manager.told.count("WATCHDOG=1") > 2)
    assert any(line.startswith("STATUS=demo ready, 0 busy") for line in manager.told)
    assert garra.process is not None
    process = psutil.Process(garra.process.pid)
    process.suspend()
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
    manager.hear()
    before = manager.told.count("WATCHDOG=1")
    with pytest.raises(AssertionError, match="still not so"):
        eventually(lambda: manager.hear().count("WATCHDOG=1") > before, 1.5)
    process.resume()
    eventually(lambda: manager.hear().count("WATCHDOG=1") > before)
    engine = Path(f"/proc/{garra.engine_pid()}/environ").read_bytes()
    assert b"NOTIFY_SOCKET" not in engine
    assert b"WATCHDOG_USEC" not in engine
    garra.stop()
    assert manager.hear().count("STOPPING=1") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt install systemd")
@pytest.mark.parametrize(("words", "most"), [(("--system", "--run-as", "daemon"), 2.5), (("--user",), 6.5)])
def test_the_unit_is_sound(garra: Garra, tmp_path: Path, words: tuple[str, ...], most: float) -> None:
    """The score counts capabilities and devices, which a user's unit cannot give up: it has none."""
    text = garra.run("service", "install", "demo", *words, "--port", "11500", "--dry-run", check=True).stdout
    unit = tmp_path / "garra.service"
    unit.write_text(text)
    scope = [words[0]] if words[0] == "--user" else []
    verified = subprocess.run(["systemd-analyze", *scope, "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=False
    )
    score = EXPOSURE.search(judged.stdout)
    assert score is not None, judged.stdout + judged.stderr
    print(score[0])
    assert float(score[1]) <= most


@pytest.fixture
def outside_tmp(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Garra]:
    """A garra that keeps nothing in /tmp, so that its service can have one of its own."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/run") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        one = Garra()
        yield one
        one.close()


@pytest.mark.skipif(bool(user_systemd.missing()), reason=user_systemd.missing())
def test_a_real_start_kill_restart_and_stop(outside_tmp: Garra) -> None:
    garra = outside_tmp
    with UserSystemd(garra) as systemd:

        def service(*words: str) -> subprocess.CompletedProcess[str]:
            return systemd.run(sys.executable, "-m", "garra", "service", *words)

        def state() -> dict[str, object]:
            seen: dict[str, object] = json.loads(service("status", "--json").stdout)
            return seen

        port = free_port()
        installed = service("install", "demo", "--user", "--port", str(port))
        assert installed.returncode == 0, installed.stderr
        private = "PrivateTmp=yes" in Path(str(state()["unit"])).read_text()
        assert private == (not sys.prefix.startswith("/tmp/")), "what it needs is not hidden from it"
        assert garra.engine()["phase"] == "ready", "not before it serves"
        first = state()
        assert (first["active"], first["enabled"], first["restarts"]) == ("active", "enabled", 0)
        assert "demo ready" in str(first["status"])
        said = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ask("Say hi.", 8), timeout=180)
        assert said.status_code == 200
        engine = garra.engine_pid()
        os.kill(int(str(first["pid"])), signal.SIGKILL)
        eventually(lambda: state()["restarts"] == 1 and state()["active"] == "active")
        assert not alive(engine), "no engine outlives its garra"
        assert state()["pid"] != first["pid"]
        with httpx.stream(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=ask("Count.", 150), timeout=180
        ) as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            stopping = subprocess.Popen(
                ["nsenter", "--mount", f"--target={systemd.pid}", "systemctl", "--user", "stop", "garra"],
                env=systemd.env,
            )
            rest = list(lines)
        assert "data: [DONE]" in rest, "a stream that runs ends whole"
        assert stopping.wait(60) == 0
        assert service("status").returncode == 8
        assert service("uninstall").returncode == 0
        assert "garra is no service here" in service("status").stderr


def test_where_no_systemd_answers_it_says_so(garra: Garra) -> None:
    refused = garra.run("service", "install", "demo", "--user")
    assert refused.returncode == 3
    assert "fix: garra up -d" in refused.stderr
    unit = Path(garra.env["XDG_CONFIG_HOME"]) / "systemd" / "user" / "garra.service"
    assert not unit.exists()


def ask(text: str, n: int) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": "demo", "stream": True, "max_tokens": n, "ignore_eos": True, "messages": messages}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

"""A real garra in a process of its own, and what tests ask of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

READY_LIMIT_S = 90.0
PATIENCE_S = 60.0
"""Far more than anything takes: a machine may be busy with other things."""
Json = dict[str, Any]


def eventually(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """The first truthy value of `condition`; fails the test when there is none in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"still not so after {within_s:g} s")


class Garra:
    """`garra up` in private config, state and runtime folders; the data folder is shared unless `data` is given."""

    def __init__(self, *, data: Path | None = None, **environment: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="gt-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GARRA_")}
        for name in ("CONFIG_HOME", "STATE_HOME", "RUNTIME_DIR", "CACHE_HOME"):
            folder = self.root / name.lower()
            folder.mkdir(mode=0o700)
            self.env[f"XDG_{name}"] = str(folder)
        if data is not None:
            self.env["XDG_DATA_HOME"] = str(data)
        self.env |= environment
        self.process: subprocess.Popen[bytes] | None = None
        self.output = self.root / "output"

    # -- the command

    def run(self, *words: str, check: bool = False, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`garra WORDS` to its end."""
        command = [sys.executable, "-m", "garra", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=check, timeout=timeout)

    def start(self, *words: str, port: int = 0) -> Garra:
        """`garra up WORDS`, on a free port unless one is given, in the background of the test."""
        command = [sys.executable, "-m", "garra", "up", *words, "--port", str(port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)
        return self

    def up(self, *words: str) -> Garra:
        """The same, waited for until the profile is READY."""
        self.start(*words)
        eventually(lambda: self.exited or self.status_or_none(), READY_LIMIT_S)
        eventually(lambda: self.exited or self.ready(), READY_LIMIT_S)
        assert not self.exited, self.said
        return self

    def configure(self, text: str) -> Garra:
        """Write the user's profiles.toml."""
        folder = Path(self.env["XDG_CONFIG_HOME"]) / "garra"
        folder.mkdir(exist_ok=True)
        (folder / "profiles.toml").write_text(text)
        return self

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it; its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.process.wait(60)

    def close(self) -> None:
        """End everything and remove the folders."""
        if self.process is not None:
            self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    # -- what it is doing

    @property
    def runtime(self) -> Path:
        return Path(self.env["XDG_RUNTIME_DIR"]) / "garra"

    def control(self, method: str, path: str) -> Json:
        transport = httpx.HTTPTransport(uds=str(self.runtime / "control.sock"))
        with httpx.Client(transport=transport, base_url="http://garra", timeout=60) as client:
            answer: Json = client.request(method, f"/garra/v1{path}").json()
            return answer

    def status(self) -> Json:
        return self.control("GET", "/status")

    def status_or_none(self) -> Json | None:
        with socket.socket(socket.AF_UNIX) as probe:  # httpx leaks a socket when it cannot connect
            try:
                probe.connect(str(self.runtime / "control.sock"))
            except OSError:
                return None
        try:
            return self.status()
        except httpx.ConnectError:  # it ended in between; `said` tells why
            return None

    def report(self, profile: str = "demo") -> Json:
        rows = self.status()["profiles"]
        report: Json = next(row for row in rows if row["engine"]["profile"] == profile)
        return report

    def engine(self, profile: str = "demo") -> Json:
        engine: Json = self.report(profile)["engine"]
        return engine

    def ready(self) -> bool:
        status = self.status_or_none()
        return status is not None and any(row["engine"]["phase"] == "ready" for row in status["profiles"])

    @property
    def url(self) -> str:
        return str(self.status()["url"])

    def connect(self) -> socket.socket:
        """A bare TCP connection to the proxy."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def engine_files(self) -> list[Json]:
        """The run files of living engines."""
        found = []
        for path in (self.runtime / "engines").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # it died since
                found.append(json.loads(path.read_text()))
        return found

    def engine_socket(self) -> str:
        return str(self.engine_files()[0]["socket"])

    def engine_pid(self) -> int:
        return int(self.engine_files()[0]["pid"])

    def engine_log(self, profile: str = "demo") -> str:
        path = Path(self.env["XDG_STATE_HOME"]) / "garra" / "logs" / f"{profile}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def n_launched(self) -> int:
        """Requests the engine put into a slot so far, warm-ups included."""
        return len(re.findall(r"launch_slot_.*processing task", self.engine_log()))

    def ask_engine(self, method: str, path: str, body: Json | None = None) -> Any:
        """The engine itself, past the proxy."""
        transport = httpx.HTTPTransport(uds=self.engine_socket())
        with httpx.Client(transport=transport, base_url="http://engine", timeout=120) as client:
            return client.request(method, path, json=body).json()

    def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in self.ask_engine("GET", "/slots"))


def alive(pid: int) -> bool:
    """Whether this process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def words(count: int, seed: int = 0) -> str:
    """A prompt of `count` distinct little sums, about 5 tokens each; no two seeds share a beginning."""
    return " ".join(f"{seed + n}+{n % 7}" for n in range(count))

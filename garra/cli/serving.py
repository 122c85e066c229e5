"""Whom a measurement asks: a garra that runs, one started for the occasion, or any server's address."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from garra.cli.serve import bring, say
from garra.supervisor.tether import tether

if TYPE_CHECKING:
    from garra.cli.control import Control

_STOP_S = 20.0


@dataclass(slots=True)
class Asked:
    """Where to ask and for which model; with the control of garra, where it is one on this machine."""

    url: str
    model: str | None
    control: Control | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """How garra serves it."""
    load_ms: list[float] = field(default_factory=list)
    watched: tuple[int, ...] = ()
    """Processes whose memory counts, where garra does not know them; with all their children."""

    def pids(self) -> list[int]:
        """The engine's process, where it is on this machine."""
        if self.watched:
            return [one for pid in self.watched for one in _family(pid)]
        if self.control is None or self.model is None:
            return []
        pid = self.control.profile(self.model)["engine"]["pid"]
        return [pid] if pid else []

    def load(self) -> None:
        """Into memory; a cold load is timed."""
        if self.control is None or self.model is None:
            return
        cold = self.control.profile(self.model)["engine"]["phase"] != "ready"
        report = self.control.load_and_wait(self.model, lambda _: None)
        if cold and report["load_s"] is not None:
            self.load_ms.append(report["load_s"] * 1e3)

    def unload(self) -> None:
        """Out of memory, and waited for."""
        assert self.control is not None
        assert self.model is not None
        self.control.unload(self.model)
        while self.control.profile(self.model)["engine"]["phase"] != "cold":
            time.sleep(0.02)


@contextmanager
def asked(what: str, model: str | None) -> Iterator[Asked]:
    """`what` is an address, or one of garra's profiles: served for as long as this lasts if it is not already."""
    if what.startswith(("http://", "https://")):
        yield Asked(what, model)
        return
    from garra import config as layers
    from garra.cli.control import running, wait_for_start

    profile = layers.load().profile(what)
    there = running()
    child: subprocess.Popen[bytes] | None = None
    if there is None:
        bring(profile)
        say(f"garra is not running: it serves {profile.name} for this measurement")
        command = [*tether("TERM"), sys.executable, "-m", "garra", "up", profile.name, "--port", "0"]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.DEVNULL)
        started = child
        there = wait_for_start(lambda: started.poll() is None)
    try:
        yield Asked(there.status()["url"], profile.name, there, _settings(profile))
    finally:
        if child is not None:
            child.terminate()
            child.wait(_STOP_S)


def _family(pid: int) -> list[int]:
    import psutil

    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def _settings(profile: Any) -> dict[str, Any]:
    """What of a profile decides speed."""
    names = (
        "context slots batch ubatch threads gpu_layers flash_attention cache_type_k cache_type_v unified_kv speculation"
    )
    return {name: getattr(profile, name) for name in names.split()}

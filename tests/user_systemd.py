"""A systemd of a user, for as long as a test takes; where the machine was not booted with one, too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support import Garra, eventually

_SYSTEMD = Path("/usr/lib/systemd/systemd")
_START = """
mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && exec "$0" --user
"""


def missing() -> str:
    """What keeps one from running here; empty when nothing does."""
    if not _SYSTEMD.exists() or shutil.which("unshare") is None:
        return "systemd and unshare are needed: apt install systemd"
    return "" if os.geteuid() == 0 else "only root makes a mount namespace for it"


class UserSystemd:
    """Used with `with`, for one garra's folders. In a mount namespace of its own, where /run/systemd is empty."""

    def __init__(self, garra: Garra) -> None:
        self.env = {**garra.env, "HOME": str(garra.root / "home")}
        (garra.root / "home").mkdir(exist_ok=True)
        for name in ("data", "cache"):  # what is shared stays where it is
            folder = {"data": ".local/share", "cache": ".cache"}[name]
            self.env.setdefault(f"XDG_{name.upper()}_HOME", str(Path.home() / folder))
        self._log = garra.root / "systemd.log"
        Path("/run/systemd").mkdir(exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "bash", "-c", _START, str(_SYSTEMD)],
                env=self.env | {"SYSTEMD_LOG_LEVEL": "info", "SYSTEMD_LOG_TARGET": "console"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> UserSystemd:
        eventually(lambda: self.run("systemctl", "--user", "show-environment").returncode == 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if error is not None:
            print(self._log.read_text(errors="replace"))
            print(self.run("systemctl", "--user", "status", "--no-pager", "garra").stdout)
        self.run("systemctl", "--user", "exit")
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A command as this user's."""
        command = ["nsenter", "--mount", f"--target={self._process.pid}", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=timeout)

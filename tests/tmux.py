"""A terminal of a given size with a program in it, and what is on its screen."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from tests.support import PATIENCE_S, Garra, eventually


class Tmux:
    """`garra WORDS` in a terminal of its own; used with `with`."""

    def __init__(self, garra: Garra, *words: str, width: int = 80, height: int = 24) -> None:
        self._socket = Path(tempfile.mkdtemp(prefix="gtmux-")) / "socket"
        environment = {**garra.env, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        command = shlex.join([sys.executable, "-m", "garra", *words]) + "; echo LEFT $?; stty -a; cat"
        self._tmux(
            "-f", "/dev/null", "-u", "new-session", "-d", "-x", str(width), "-y", str(height), command, env=environment
        )  # fmt: skip

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if error is not None:
            print(self.text)
        self._tmux("kill-server", check=False)
        self._socket.unlink(missing_ok=True)
        self._socket.parent.rmdir()

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p").rstrip("\n")

    @property
    def ansi(self) -> str:
        """With its colours."""
        return self._tmux("capture-pane", "-p", "-e").rstrip("\n")

    def lines(self) -> list[str]:
        return self.text.split("\n")

    def shows(self, *words: str, within_s: float = PATIENCE_S) -> str:
        """The first screen that has all of these."""

        def seen() -> str:
            text = self.text
            return text if all(word in text for word in words) else ""

        return str(eventually(seen, within_s))

    def keys(self, *keys: str) -> None:
        """In tmux's names: `Up`, `Escape`, `q`."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def _tmux(self, *words: str, check: bool = True, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=check, env=env)
        return done.stdout

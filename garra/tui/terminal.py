"""The terminal as a screen of our own: keys one by one, and everything as it was before when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live

from garra.tui.keys import typed


class Terminal:
    """Used with `with`, inside a running event loop."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    @contextlib.contextmanager
    def taken(self, on_key: Callable[[str], None], on_resize: Callable[[], None]) -> Iterator[None]:
        """`on_key` gets what `keys.typed` gives; `quit` when the terminal is gone."""
        loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)

        def read() -> None:
            try:
                data = os.read(keyboard, 1024)
            except OSError:
                data = b""
            for key in typed(data) if data else ("q",):
                on_key(key)

        tty.setcbreak(keyboard)
        loop.add_reader(keyboard, read)
        loop.add_signal_handler(signal.SIGWINCH, on_resize)
        try:
            with self._live:
                yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(keyboard)
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    def show(self, screen: RenderableType) -> None:
        self._live.update(screen, refresh=True)


def usable() -> bool:
    """Whether there is a terminal that can be taken."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

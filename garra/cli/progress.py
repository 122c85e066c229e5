"""The bar of a download: how much, how fast, how long still. On terminals only; elsewhere a line now and then."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any

_LINE_EVERY = 0.1
"""Of the whole."""


class DownloadBar:
    """Shows what a worker tells while it pulls or hashes; used with `with`."""

    def __init__(self, what: str, total: int | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._what, self._total, self._next = what, total, _LINE_EVERY
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._terminal)
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> DownloadBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, told: dict[str, Any]) -> None:
        """One message of the worker."""
        done, total = told.get("done_bytes"), told.get("total_bytes", self._total)
        name = PurePosixPath(told["file"]).name if "file" in told else self._what
        description = f"waiting: {told['why']}" if told["state"] == "waiting" else f"{told['state']} {name}"
        self._progress.update(self._task, description=description, completed=done, total=total)
        if not self._terminal and done and total and done / total >= self._next:
            print(f"{description}: {done / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr, flush=True)
            self._next = done / total + _LINE_EVERY

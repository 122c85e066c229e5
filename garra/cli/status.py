"""`garra status`, live or once; `garra ps`, `garra logs`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra import paths
from garra.cli import completion
from garra.errors import UnknownModel

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from garra.cli.control import Control
    from garra.downloads import DownloadStatus
    from garra.snapshot import Device, ProfileReport, Snapshot

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FOLLOW_POLL_S = 0.25
_PIPE_WIDTH = 200


def status(
    as_json: JsonOption = False,
    once: Annotated[bool, typer.Option("--once", help="Print it as it is now. So do pipes and files.")] = False,
) -> None:
    """Watch garra live: profiles, slots, queues, speed, memory, downloads, events. Keys: ? tells them."""
    from garra.cli.control import Control

    if as_json:
        print_json(Control().status(closely=True))
        return
    if not once and _watch():
        return
    seen = _snapshot(Control())
    print(f"garra {seen.version} (pid {seen.pid}) at {seen.url}, engine {seen.engine}")
    _print(seen.profiles, seen.devices, seen.downloads)


def ps(as_json: JsonOption = False) -> None:
    """Show only the engines that are up or on their way."""
    from garra.cli.control import Control

    if as_json:
        print_json([row for row in Control().status(closely=True)["profiles"] if row["engine"]["phase"] != "cold"])
        return
    _print([row for row in _snapshot(Control()).profiles if row.engine.phase != "cold"])


def logs(
    profile: Annotated[
        str,
        completion.profile("A profile, or garra for the background server's own log."),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
) -> None:
    """Show an engine's log."""
    if profile == "garra":
        path = paths.server_log()
    else:
        from garra import config

        path = paths.engine_log(config.load().profile(profile).name)
    if not path.exists():
        raise UnknownModel(f"{profile} has no log yet ({path})", fix=f"garra up {profile}")
    shown = path.read_bytes()
    sys.stdout.write("".join(shown.decode("utf-8", "replace").splitlines(keepends=True)[-lines or len(shown) :]))
    sys.stdout.flush()
    if follow:
        _follow(path, len(shown))


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    import json

    print(json.dumps(value, indent=2))


def _follow(path: Path, position: int) -> None:
    while True:
        time.sleep(_FOLLOW_POLL_S)
        if not path.exists() or path.stat().st_size < position:
            position = 0  # rotated
            continue
        with path.open("rb") as file:
            file.seek(position)
            grown = file.read()
        position += len(grown)
        sys.stdout.write(grown.decode("utf-8", "replace"))
        sys.stdout.flush()


def print_wide(table: Table) -> None:
    """A table as wide as the terminal; into a pipe as wide as it likes."""
    _console().print(table)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return Console(width=None if console.is_terminal else _PIPE_WIDTH, highlight=False)


def _watch() -> bool:
    """The live view, until somebody leaves it; False where there is no terminal for it."""
    from garra.tui import terminal

    if not terminal.usable():
        return False
    import asyncio

    from garra.tui import live

    asyncio.run(live.watch())
    return True


def _snapshot(control: Control) -> Snapshot:
    import msgspec

    from garra.snapshot import Snapshot

    return msgspec.convert(control.status(closely=True), Snapshot)


def _print(
    rows: Sequence[ProfileReport], devices: Sequence[Device] = (), downloads: Sequence[DownloadStatus] = ()
) -> None:
    from garra.tui import tables

    width = _console().width
    print_wide(tables.profiles(rows, width))
    if devices:
        print()
        print_wide(tables.memory(devices, width))
    if downloads:
        print()
        print_wide(tables.downloads(downloads, width))

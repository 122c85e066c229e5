"""`garra status`, `garra ps`, `garra logs`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra import paths
from garra.errors import UnknownModel

if TYPE_CHECKING:
    from rich.table import Table

    from garra.cli.control import Report

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FOLLOW_POLL_S = 0.25
_PIPE_WIDTH = 200


def status(as_json: JsonOption = False) -> None:
    """Show garra, its profiles and their engines."""
    from garra.cli.control import Control

    report = Control().status()
    if as_json:
        print_json(report)
        return
    print(f"garra {report['version']} (pid {report['pid']}) at {report['url']}, engine {report['engine']}")
    _print_table(report["profiles"])


def ps(as_json: JsonOption = False) -> None:
    """Show only the engines that are up or on their way."""
    from garra.cli.control import Control

    rows = [row for row in Control().status()["profiles"] if row["engine"]["phase"] != "cold"]
    if as_json:
        print_json(rows)
        return
    _print_table(rows)


def logs(
    profile: Annotated[str, typer.Argument(help="A profile, or garra for the background server's own log.")],
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


def _vram_mib(row: Report) -> int:
    """What the engine was planned to take of its GPU."""
    return sum(mib for device, mib in row["engine"]["planned_mib"].items() if device != "host")


def print_wide(table: Table) -> None:
    """A table as wide as the terminal; into a pipe as wide as it likes."""
    from rich.console import Console

    console = Console(highlight=False)
    Console(width=None if console.is_terminal else _PIPE_WIDTH, highlight=False).print(table)


def _news(row: Report) -> list[str]:
    """What an engine that is up has to tell: whether drafting pays, and how its last answers were."""
    engine, recent, news = row["engine"], row["recent"], []
    if engine["drafting"] and engine["phase"] == "ready":
        news.append(f"drafting {engine['drafting']}")
    if recent["answers"]:
        late = f"last 5 min: {recent['answers']} answers, TTFT {recent['p50_ttft_ms']:.0f} ms"
        late += f" (p95 {recent['p95_ttft_ms']:.0f})"
        if recent["p50_tpot_ms"]:
            late += f", {1e3 / recent['p50_tpot_ms']:.0f} tok/s each"
        news.append(late)
    return news


def _print_table(rows: list[Report]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    on_gpu = any(_vram_mib(row) for row in rows)
    vram = ("VRAM",) if on_gpu else ()
    for heading in ("PROFILE", "PHASE", "SLOTS", "CONTEXT", "BUSY", "WAITING", "DONE", *vram, "RSS", "PID", "NOTE"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "NOTE")
    for row in rows:
        engine = row["engine"]
        rss = f"{engine['rss_mib']} MiB" if engine["rss_mib"] else ""
        note = engine["detail"] or "; ".join([*engine["warnings"], *_news(row)])
        note = note or ("" if row["present"] else "not downloaded")
        phase = engine["phase"] + (f" ({engine['cause']})" if engine["cause"] else "") + " pinned" * engine["pinned"]
        busy, waiting = engine["leases"] + engine["lingering"], engine["waiting"]
        numbers = map(str, (engine["slots"], engine["slot_context"], busy, waiting, row["requests"].get("complete", 0)))
        planned = (f"{_vram_mib(row)} MiB" if _vram_mib(row) else "",) if on_gpu else ()
        table.add_row(engine["profile"], phase, *numbers, *planned, rss, str(engine["pid"] or ""), note)
    print_wide(table)

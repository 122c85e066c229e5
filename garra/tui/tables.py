"""The parts of the screen that are tables: profiles, memory, downloads. Also what `garra status --once` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from garra.downloads import DownloadState, DownloadStatus
from garra.snapshot import TREND_STEPS, Device, ProfileReport
from garra.spec import Phase
from garra.traffic import Outcome
from garra.tui.bits import duration, gib, milliseconds, slots, sparkline, stacked

_STYLES = {Phase.READY: "green", Phase.COLD: "dim", Phase.FAILED: "bold red", Phase.BACKOFF: "red"}
_NARROWEST = 8
NOTES_FROM = 150
"""From this width on every profile has its note beside it."""
Cell = Callable[[ProfileReport], Text | str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the profiles' table."""

    heading: str
    cell: Cell
    from_width: int = 0
    """Of the terminal."""
    right: bool = False
    min_width: int = 0
    """Where what is in it changes all the time: columns that jump cannot be read."""
    yields: bool = False
    """It is cut short where there is no room; the others are not."""


def profiles(
    rows: Sequence[ProfileReport], width: int, *, pace: Mapping[str, float] | None = None, chosen: int | None = None
) -> Table:
    """As many columns as the width allows. `pace`: tokens per second now; `chosen`: the row with the marker."""
    columns = [one for one in _columns(rows, pace) if width >= one.from_width]
    cells = [[_text(one.cell(row)) for one in columns] for row in rows]
    widths = [
        max(one.min_width, len(one.heading), *(line[n].cell_len for line in cells), 0) for n, one in enumerate(columns)
    ]
    yielding = [n for n, one in enumerate(columns) if one.yields]
    _shrink(widths, yielding, width - (2 if chosen is not None else 0))
    table = _table()
    if chosen is not None:
        table.add_column("", width=1)
    for one, cell_width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if one.right else "left"
        table.add_column(one.heading, justify=justify, no_wrap=True, overflow="ellipsis", width=cell_width)
    for n, line in enumerate(cells):
        marker = () if chosen is None else ("▸" if n == chosen else "",)
        table.add_row(*marker, *line, style="bold" if n == chosen else "")
    return table


def _shrink(widths: list[int], yielding: Sequence[int], room: int) -> None:
    """Take what does not fit from the columns that may yield, the last first: rich would take from all."""
    for n in reversed(yielding):
        excess = sum(widths) + len(widths) - 1 - room
        widths[n] = max(_NARROWEST, widths[n] - max(0, excess)) if excess > 0 else widths[n]


def _columns(rows: Sequence[ProfileReport], pace: Mapping[str, float] | None) -> list[Column]:
    on_gpu = any(_vram_mib(row) for row in rows)
    columns = [
        Column("PROFILE", lambda row: row.engine.profile, min_width=12, yields=True),
        Column("PHASE", _phase, min_width=18),
        Column("SLOTS", lambda row: slots(row.engine.leases, row.engine.lingering, row.engine.slots)),
        Column("WAITING", _waiting, 48, min_width=8),
    ]
    if pace is not None:
        columns.append(
            Column("TOK/S", lambda row: _rate(pace.get(row.engine.profile, 0.0)), 58, right=True, min_width=6)
        )
    columns += [
        Column("TTFT p50/p95", _ttft, 72, right=True),
        Column("LAST 5 MIN", lambda row: sparkline(row.recent.ttft_trend_ms), 130, min_width=TREND_STEPS),
        Column("CONTEXT", lambda row: str(row.engine.slot_context), 100, right=True),
        Column("DONE", lambda row: str(row.requests.get(Outcome.COMPLETE, 0)), 100, right=True),
        Column("RSS", lambda row: _mib(row.engine.rss_mib), 110, right=True),
    ]
    if on_gpu:
        columns.append(Column("VRAM", lambda row: _mib(_vram_mib(row)), 110, right=True))
    if pace is None:
        columns.append(Column("PID", lambda row: str(row.engine.pid or ""), right=True))
    columns.append(Column("NOTE", about, from_width=0 if pace is None else NOTES_FROM, yields=True))
    return columns


def about(row: ProfileReport) -> str:
    """What its slots do, and what there is to know of it."""
    return "; ".join(filter(None, (_doing(row), _note(row))))


def _note(row: ProfileReport) -> str:
    """What there is to know beside the figures: why an engine is down, what holds it back, whether drafting pays."""
    engine = row.engine
    if engine.detail:
        return engine.detail
    told = [*engine.warnings, *([engine.prompts] if engine.prompts else [])]
    if engine.drafting and engine.phase is Phase.READY:
        told.append(f"drafting {engine.drafting}")
    if row.recent.p50_tpot_ms:
        told.append(f"{1e3 / row.recent.p50_tpot_ms:.0f} tok/s each")
    if engine.stays_s is not None and not engine.leases:
        told.append(f"leaves in {duration(engine.stays_s)} if nobody asks")
    return "; ".join(told) or ("" if row.present else f"not downloaded: garra pull {engine.profile}")


def _doing(row: ProfileReport) -> str:
    """What its slots do."""
    words = []
    for n, slot in enumerate(row.slots):
        if slot.busy:
            done = f"decode {slot.n_decoded}" if slot.n_decoded else f"prefill {slot.n_prompt_tokens}"
            words.append(f"slot {n} {done}")
    return ", ".join(words)


def memory(devices: Sequence[Device], width: int) -> Table:
    """GiB by device: what was planned, what is really used, what others hold, what is free; heat and power."""
    table, bar = _table(), bar_width(width)
    names = [_device(one) for one in devices]
    table.add_column("MEMORY GiB", no_wrap=True, width=max(map(len, ("MEMORY GiB", *names))))
    table.add_column("", no_wrap=True, width=bar)
    for heading in ("PLANNED", "USED", "OTHERS", "FREE", "TOTAL"):
        table.add_column(heading, justify="right", no_wrap=True, width=max(5, len(heading)))
    table.add_column("HEAT", no_wrap=True, overflow="ellipsis")
    for name, one in zip(names, devices, strict=True):
        held = one.total_mib - one.free_mib
        parts = [(held, "▒", "magenta")]
        if one.used_mib is not None:
            parts = [(one.used_mib, "█", "cyan"), (held - one.used_mib, "▒", "magenta")]
        figures = map(gib, (one.planned_mib, one.used_mib, one.others_mib, one.free_mib, one.total_mib))
        table.add_row(name, stacked(parts, one.total_mib, bar), *figures, _heat(one))
    return table


def bar_width(width: int) -> int:
    """Cells of a bar, by those of the terminal."""
    return 10 if width < 100 else 30


def _device(one: Device) -> str:
    name = one.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return (name if one.id == "host" else f"{one.id} {name}")[:18]


def downloads(running: Sequence[DownloadStatus], width: int) -> Table:
    """Those that run, and what became of the others."""
    table, bar = _table(), bar_width(width)
    for heading in ("DOWNLOADS", "", "", "", "LEFT"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for one in running:
        share = one.done_bytes / one.total_bytes if one.total_bytes else 0.0
        left = duration(one.eta_s) if one.eta_s is not None else ""
        rate = f"{one.bytes_per_s / 1e6:.1f} MB/s" if one.state is DownloadState.RUNNING else str(one.state)
        row = (one.ref, stacked([(share, "█", "cyan")], 1.0, bar), f"{share:.0%}", rate, left)
        table.add_row(*row, style="red" if one.state is DownloadState.FAILED else "")
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))


def _phase(row: ProfileReport) -> Text:
    engine = row.engine
    style = _STYLES.get(engine.phase, "yellow")
    text = Text(engine.phase, style=style)
    if engine.phase is Phase.LOADING and engine.load_fraction is not None:
        text.append(f" {engine.load_fraction:.0%}")
    elif engine.cause is not None:
        text.append(f" ({engine.cause})")
    if engine.since_s >= 1 and engine.phase is not Phase.COLD:
        text.append(f" {duration(engine.since_s)}", style="dim")
    return text.append(" pinned") if engine.pinned else text


def _waiting(row: ProfileReport) -> Text:
    engine = row.engine
    if not engine.waiting:
        return Text("0", style="dim")
    oldest = f", {duration(engine.oldest_wait_s)}" if engine.oldest_wait_s is not None else ""
    return Text(f"{engine.waiting}{oldest}", style="yellow")


def _rate(tok_s: float) -> Text:
    return Text(f"{tok_s:.1f}") if tok_s >= 0.05 else Text("-", style="dim")


def _ttft(row: ProfileReport) -> Text:
    recent = row.recent
    if recent.p50_ttft_ms is None:
        return Text("-", style="dim")
    return Text(f"{milliseconds(recent.p50_ttft_ms)}/{milliseconds(recent.p95_ttft_ms)}")


def _text(cell: Text | str) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _mib(mib: int | None) -> str:
    return f"{mib} MiB" if mib else ""


def _vram_mib(row: ProfileReport) -> int:
    """What the engine was planned to take of its GPU."""
    return sum(mib for device, mib in row.engine.planned_mib.items() if device != "host")


def _heat(one: Device) -> Text:
    words = [f"{one.temperature_c:.0f}°C"] if one.temperature_c is not None else []
    if one.power_w is not None:
        words.append(f"{one.power_w:.0f}W")
    text = Text(" ".join(words))
    if one.throttled:
        text.append(f" slow: {', '.join(one.throttled)}", style="red")
    return text

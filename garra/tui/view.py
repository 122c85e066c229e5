"""A snapshot as a screen: exactly as many lines as the terminal has, whatever there is to show. A pure function."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from garra.snapshot import ProfileReport, Snapshot
from garra.spec import Phase
from garra.tui import tables
from garra.tui.bits import duration
from garra.tui.words import Page, Told, Watched

_FEWEST_EVENTS = 3
_KEYS = "↑↓ choose   l load   u unload   p pin   g log   ? help   q quit"
_HELP = """\
↑ ↓  j k   choose a profile
l          load it; other models leave if they must
u          unload it; running answers may end first
p          pin it in memory, or let it go
g          its engine's log
?          this page
q          quit (garra runs on)

SLOTS      ■ answers   ◧ its client left, the engine still works   □ free
WAITING    requests in the queue, and how long the oldest has waited
TOK/S      tokens per second now, all its slots together
TTFT       time to first token of the last five minutes' answers: median / 95th percentile
MEMORY     █ garra's engines   ▒ other programs   ░ free; PLANNED is what was counted on

The same as text: garra status --once, as JSON: garra status --json"""


class Screen:
    """Renders to the size of the terminal it is shown in."""

    def __init__(self, snapshot: Snapshot, watched: Watched) -> None:
        self._snapshot = snapshot
        self._watched = watched

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        body: Sequence[RenderableType]
        match self._watched.page:
            case Page.LOG:
                body = _log(self._watched, self._name, height - 2)
            case Page.HELP:
                body = [Text(_HELP)]
            case _:
                body = self._overview(width, height - 2)
        lines = console.render_lines(Group(*body), options.update(height=None), pad=False)[: height - 2]
        lines += [[] for _ in range(height - 2 - len(lines))]
        for line in (*console.render_lines(self._head(width), options.update(height=None), pad=False)[:1], *lines):
            yield from line
            yield Segment.line()
        yield from console.render_lines(self._foot(), options.update(height=None), pad=False)[0]

    @property
    def _name(self) -> str:
        rows = self._snapshot.profiles
        return rows[self._watched.chosen].engine.profile if self._watched.chosen < len(rows) else ""

    def _head(self, width: int) -> Text:
        seen, watched = self._snapshot, self._watched
        line = Text(f"garra {seen.version}", style="bold", no_wrap=True, overflow="ellipsis")
        line.append(f"  {seen.url}  up {duration(seen.uptime_s)}  engine {seen.engine}", style="not bold")
        if watched.silent_s is not None:
            return Text(f"garra has not answered for {duration(watched.silent_s)}", style="bold red", no_wrap=True)
        room = width - line.cell_len - len(watched.clock)
        return line.append(" " * room + watched.clock, style="not bold dim") if room > 1 else line

    def _foot(self) -> Text:
        notice = self._watched.notice
        if notice:
            return Text(notice, style="reverse", no_wrap=True, overflow="ellipsis")
        keys = _KEYS if self._watched.page is Page.OVERVIEW else "esc back   q quit"
        return Text(keys, style="dim", no_wrap=True, overflow="ellipsis")

    def _overview(self, width: int, height: int) -> list[RenderableType]:
        """Profiles, what the chosen one does, memory, downloads; events get the lines that are left."""
        seen, watched = self._snapshot, self._watched
        running = seen.downloads[-3:]
        about = () if width >= tables.NOTES_FROM else (self._about(),)
        fixed = 5 + len(about) + len(seen.devices) + (2 + len(running) if running else 0)
        first, rows = _window(seen.profiles, watched.chosen, max(1, height - fixed - _FEWEST_EVENTS))
        parts: list[RenderableType] = [
            tables.profiles(rows, width, pace=watched.pace, chosen=watched.chosen - first),
            *about,
            Text(),
            tables.memory(seen.devices, width),
        ]
        if running:
            parts += [Text(), tables.downloads(running, width)]
        left = height - fixed - len(rows)
        return [*parts, Text(), self._counts(), *(_event(one) for one in watched.events[-max(0, left) :] if left > 0)]

    def _about(self) -> Text:
        rows, chosen = self._snapshot.profiles, self._watched.chosen
        if chosen >= len(rows):
            return Text()
        row = rows[chosen]
        style = "red" if row.engine.phase in (Phase.FAILED, Phase.BACKOFF) else "dim"
        return Text(f"  {tables.about(row)}", style=style, no_wrap=True, overflow="ellipsis")

    def _counts(self) -> Text:
        rows = self._snapshot.profiles
        swaps, restarts = sum(row.swaps for row in rows), sum(row.engine.restarts for row in rows)
        line = Text("EVENTS", style="bold dim", no_wrap=True)
        return line.append(f"  swaps {swaps}  restarts {restarts}", style="not bold dim")


def _window(rows: Sequence[ProfileReport], chosen: int, most: int) -> tuple[int, Sequence[ProfileReport]]:
    """Of too many rows, those around the chosen one; with the number of the first."""
    first = max(0, min(chosen - most // 2, len(rows) - most))
    return first, rows[first : first + most]


def _event(one: Told) -> Text:
    bad = one.detail.startswith(("failed", "backoff")) or one.kind == "refused"
    line = Text(one.at, style="dim", no_wrap=True, overflow="ellipsis")
    line.append(f" {one.profile:<13}", style="not dim")
    return line.append(f"{one.kind:<10} {one.detail}", style="not dim red" if bad else "not dim")


def _log(watched: Watched, name: str, height: int) -> list[RenderableType]:
    title = Text(f"log of {name}, the newest last (all of it: garra logs {name} -f)", style="bold dim")
    lines = watched.log[-(height - 1) :]
    return [title, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines)]

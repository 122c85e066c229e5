"""Small pieces of a screen: bars, sparklines, durations, sizes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

_STEPS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """At most five characters: `7s`, `3m`, `2h05`, `4d`."""
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    if seconds < 36 * 3600:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02}"
    return f"{seconds / 86400:.0f}d"


def gib(mib: float | None) -> str:
    """GiB with one decimal."""
    return "" if mib is None else f"{mib / 1024:.1f}"


def milliseconds(ms: float | None) -> str:
    """`85ms`, `1.2s`, `34s`."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms:.0f}ms"
    return f"{ms / 1e3:.1f}s" if ms < 10_000 else f"{ms / 1e3:.0f}s"


def sparkline(values: Sequence[float | None]) -> str:
    """One character each, the largest at full height; a blank where there is no value."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else _STEPS[min(7, int(value / most * 7.999))] for value in values)


def slots(busy: int, lingering: int, total: int, width: int = 8) -> Text:
    """A square for each slot: full while it answers, half when its client left; a number where they are many."""
    if total > width:
        return Text(f"{busy + lingering}/{total}", style="yellow" if busy >= total else "")
    free = max(0, total - busy - lingering)
    return Text.assemble(("■" * busy, "cyan"), ("◧" * lingering, "yellow"), ("□" * free, "dim"))


def stacked(parts: Sequence[tuple[float, str, str]], total: float, width: int) -> Text:
    """A bar of `width` cells; `parts`: how much, with which character and style. What is there is never invisible."""
    bar, left = Text(), width
    for amount, character, style in parts:
        cells = 0 if total <= 0 or amount <= 0 else max(1, round(amount / total * width))
        cells = min(cells, left)
        bar.append(character * cells, style=style)
        left -= cells
    return bar.append("░" * left, style="dim")

"""What `garra bench` shows: a bar while it runs, tables, warnings, files."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garra.cli.status import print_json, print_wide
from garra.errors import BadRequest

if TYPE_CHECKING:
    from rich.table import Table

    from garra.bench.compare import Difference
    from garra.bench.words import Run, Sample, Slo


class Bar:
    """One line that says what is measured; on terminals a bar, elsewhere a line per round."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._terminal = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._terminal)
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def stage(self, what: str, n: int) -> None:
        """What comes next."""
        self._progress.reset(self._task, description=what, total=n or None)
        if not self._terminal:
            print(what, file=sys.stderr, flush=True)

    def told(self, sample: Sample) -> None:
        """A request ended."""
        self._progress.advance(self._task)


def finish(run: Run, slo: Slo | None, *, output: Path | None, plot: Path | None, as_json: bool) -> None:
    """Keep the run and tell it."""
    from garra.bench import history

    with history.opened() as kept:
        kept.keep(run)
    tell(run, slo, output=output, plot=plot, as_json=as_json)


def tell(run: Run, slo: Slo | None, *, output: Path | None, plot: Path | None, as_json: bool) -> None:
    """Show the run, as a table or as JSON, and write the files that were asked for."""
    from garra.bench import history, summary

    document = history.as_json(run, slo)
    if output is not None:
        write_json(output, document)
    if plot is not None:
        from garra.bench.plot import draw

        draw(run, plot)
    if as_json:
        print_json(document)
        return
    print(f"{run.model} on {run.engine}; run {run.id}{f' ({run.label})' if run.label else ''}")
    print(f"host: {run.host.get('cpu', run.host.get('address', ''))}, {run.host.get('cores', '?')} cores", end="")
    print(f", {run.host['gpus']}" if run.host.get("gpus") else "")
    _print_cells([summary.summary(cell, slo) for cell in run.cells])
    for name, values in (("load", run.load_ms), ("swap", run.swap_ms)):
        if values:
            print(f"{name}: {', '.join(f'{value:.0f}' for value in values)} ms")
    for cell in run.cells:
        for warning in summary.warnings(cell):
            print(f"warning: {warning}", file=sys.stderr)


def write_json(path: Path, document: Any) -> None:
    """Raises BadRequest where the file cannot be written."""
    try:
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}", fix="choose another path with -o") from None


_COLUMNS = (
    ("TTFT ms p50", "p50_ttft_ms", 0),
    ("p95", "p95_ttft_ms", 0),
    ("p99", "p99_ttft_ms", 0),
    ("queue", "p50_queue_ms", 0),
    ("prefill", "p50_prefill_ms", 0),
    ("ITL ms p50", "p50_itl_ms", 1),
    ("p95", "p95_itl_ms", 1),
    ("p99", "p99_itl_ms", 1),
    ("TPOT ms", "p50_tpot_ms", 1),
    ("E2EL ms p50", "p50_e2el_ms", 0),
    ("p95", "p95_e2el_ms", 0),
    ("out tok/s", "output_throughput", 1),
    ("total", "total_token_throughput", 0),
    ("per stream", "stream_tok_s", 1),
    ("prefill tok/s", "prefill_tok_s", 0),
)
_RARE = (
    ("goodput/s", "request_goodput", 2),
    ("accepted", "acceptance_rate", 2),
    ("cached", "cache_hit_rate", 2),
    ("errors", "error_rate", 2),
    ("cancelled", "cancel_rate", 2),
    ("RAM MiB", "seen_ram_mib", 0),
    ("VRAM MiB", "seen_vram_mib", 0),
    ("W", "seen_power_w", 0),
    ("GPU C", "seen_gpu_celsius", 0),
    ("CPU C", "seen_cpu_celsius", 0),
)


def _print_cells(cells: Sequence[dict[str, Any]]) -> None:
    """One column per cell: there are more figures than loads."""
    table = plain_table()
    table.add_column("")
    for cell in cells:
        table.add_column(f"{cell['workload']} {cell['load']}", justify="right")
    table.add_row("whole answers", *(f"{cell['completed']} of {cell['completed'] + cell['failed']}" for cell in cells))
    group = ""
    for heading, key, digits in (*_COLUMNS, *_RARE):
        if heading.endswith(" p50"):
            group = heading.removesuffix(" p50")
        shown = f"{group} {heading}" if heading in ("p95", "p99") else heading
        values = [cell.get(key) for cell in cells]
        if any(value not in (None, 0) for value in values):
            table.add_row(shown, *(number(value, digits) for value in values))
    print_wide(table)


def show_list(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """The kept runs."""
    if as_json:
        print_json(rows)
        return
    table = plain_table()
    for heading in ("RUN", "LABEL", "WHEN", "ENGINE", "MODEL", "LOADS"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        loads = ", ".join(f"{cell['workload']} {cell['load']}" for cell in row["cells"])
        table.add_row(row["id"], row["label"], row["at"], row["engine"], row["model"], loads)
    print_wide(table)


def show_comparison(a: Run, b: Run, differences: Sequence[Difference], *, as_json: bool) -> None:
    """The verdict on each metric."""
    from garra.bench.compare import settings_that_differ

    settings = settings_that_differ(a, b)
    if as_json:
        rows = [dataclasses.asdict(one) for one in differences]
        print_json({"a": a.id, "b": b.id, "settings": settings, "differences": rows})
        return
    print(f"a: {a.id} {a.label}   b: {b.id} {b.label}")
    for key, (one, other) in settings.items():
        print(f"  {key}: {one} | {other}")
    table = plain_table()
    for heading in ("LOAD", "METRIC", "A", "B", "B/A", "99 % INTERVAL", "P", "VERDICT"):
        table.add_column(heading, justify="left" if heading in ("LOAD", "METRIC", "VERDICT") else "right")
    for one in differences:
        ratio = one.ratio
        table.add_row(
            one.cell, one.metric, f"{one.a:.2f}", f"{one.b:.2f}", f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}", f"{one.p:.2g}", one.verdict,
        )  # fmt: skip
    print_wide(table)


def plain_table() -> Table:
    """A table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def number(value: float | None, digits: int) -> str:
    """A dash for what nobody measured."""
    return "-" if value is None else f"{value:.{digits}f}"

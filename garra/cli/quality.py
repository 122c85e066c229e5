"""`garra bench quality`: what cheaper caches and weights cost in answers, beside what they bring."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.bench_report import number, plain_table
from garra.cli.status import JsonOption, print_json, print_wide
from garra.errors import BadRequest

if TYPE_CHECKING:
    from garra.tuner.quality import Row


def quality(
    profile: Annotated[
        str,
        completion.profile("The profile whose weights are the reference, with an f16 cache."),
    ],
    kv: Annotated[str, typer.Option(help="Types of KV cache to compare.")] = "f16,q8_0,q4_0",
    weights: Annotated[str, typer.Option(help="Weight types to make and compare too, such as Q8_0,Q4_0.")] = "",
    text: Annotated[Path | None, typer.Option(help="A text of your own; at least 1,024 tokens.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each speed is measured.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Clients at once, for throughput.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Compare cache and weight types: speed, memory, perplexity and KL divergence in one table."""
    from garra import config as layers
    from garra import paths
    from garra.cli.engine import build_if_missing
    from garra.cli.plan import planner
    from garra.cli.serve import bring, say
    from garra.cli.tune import TEXT, exclusive, laboratory
    from garra.engine import store as engines
    from garra.registry.catalog import Catalog
    from garra.store import Store
    from garra.tuner.lab import Dose
    from garra.tuner.materials import Workbench
    from garra.tuner.quality import compare

    if text is not None and not text.is_file():
        raise BadRequest(f"there is no file {text}", fix="--text FILE")
    wished = layers.load().profile(profile)
    build_if_missing(say)
    bring(wished)
    build = engines.current()
    store = Store(paths.state_db())
    kinds: Any = [kind for kind in kv.split(",") if kind]
    try:
        with planner() as plans, exclusive(say):
            bench = Workbench(wished, build, plans, Catalog(store), text or TEXT, n_chunks=None)
            lab = laboratory(build, Dose(streams=streams), seed=1)
            wanted = [kind for kind in weights.split(",") if kind]
            rows = asyncio.run(compare(wished, bench, lab, kinds, wanted, rounds, say))
    finally:
        store.close()
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        _show(rows)


def _show(rows: list[Row]) -> None:
    table = plain_table()
    headings = ("WEIGHTS", "CACHE", "TOK/S", "TTFT MS", "TOGETHER", "CACHE MIB", "WEIGHTS MIB", "RSS MIB", "PPL", "KLD",
                "KLD P99", "SAME TOP")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("WEIGHTS", "CACHE") else "right")
    for row in rows:
        figures, judged = row.figures, row.quality
        speeds = ["-"] * 3
        if figures is not None:
            speeds = [number(figures.decode_tok_s, 1), number(figures.ttft_ms, 0), number(figures.output_tok_s, 1)]
        told = ["-"] * 4
        if judged is not None:
            same = f"{judged.same_top:.1%}" if judged.same_top is not None else "-"
            told = [number(judged.ppl, 2), number(judged.kld, 4), number(judged.kld_p99, 4), same]
        memory = [number(row.cache_mib, 0), number(row.weights_mib, 0), number(figures.ram_mib if figures else None, 0)]
        table.add_row(row.weights, row.cache_type, *speeds, *memory, *told)
    print_wide(table)
    for row in rows:
        if row.problem:
            print(f"  {row.weights}, {row.cache_type}: {row.problem}")

"""A cell's samples as figures, under the keys `vllm bench serve` writes. Pure.

TTFT: sent to first token-bearing chunk. ITL: gaps between such chunks. TPOT: (last - first) / (output tokens - 1).
E2EL: sent to the end of the stream. Milliseconds; throughput in tokens per second of the rounds' wall time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from garra.bench import statistics as st
from garra.bench.words import Cell, Sample, Slo

PERCENTILES = (50, 90, 95, 99)


def summary(cell: Cell, slo: Slo | None = None) -> dict[str, Any]:
    """vLLM's flat keys, then what garra adds. A figure nobody could measure is None."""
    whole = [sample for sample in cell.samples if sample.ending == "ok"]
    duration_s = math.fsum(cell.durations_s)
    n_in = sum(sample.n_prompt or 0 for sample in whole)
    n_out = sum(sample.n_tokens for sample in whole)
    endings = Counter(sample.ending for sample in cell.samples)
    figures: dict[str, Any] = {
        "workload": cell.workload,
        "load": cell.load,
        "max_concurrency": cell.concurrency,
        "request_rate": cell.rate if cell.rate is not None else "inf",
        "duration": duration_s,
        "completed": len(whole),
        "failed": len(cell.samples) - len(whole),
        "total_input_tokens": n_in,
        "total_output_tokens": n_out,
        "request_throughput": len(whole) / duration_s if duration_s else None,
        "output_throughput": n_out / duration_s if duration_s else None,
        "total_token_throughput": (n_in + n_out) / duration_s if duration_s else None,
        "request_goodput": _goodput(cell, slo, duration_s),
        **_spread("ttft", [sample.ttft_s for sample in whole]),
        **_spread("tpot", [sample.tpot_s for sample in whole]),
        **_spread("itl", [gap for sample in whole for gap in sample.itls_s]),
        **_spread("e2el", [sample.e2e_s for sample in whole]),
        **_spread("queue", [sample.queue_s for sample in whole]),
        **_spread("load", [sample.load_s for sample in whole]),
        **_spread("prefill", [sample.prefill_s for sample in whole]),
        "stream_tok_s": _median([1 / sample.tpot_s for sample in whole if sample.tpot_s]),
        "prefill_tok_s": _median([_prefill_tok_s(sample) for sample in whole]),
        "cache_hit_rate": _cache_hits(whole),
        "acceptance_rate": _acceptance(whole),
        "endings": dict(endings),
        "error_rate": (endings["error"] + endings["cut"] + endings["refused"]) / max(1, len(cell.samples)),
        "cancel_rate": endings["cancelled"] / max(1, len(cell.samples)),
        "prompt_off_by": _off_by(whole),
    }
    return figures | {f"seen_{key}": value for key, value in cell.seen.items()}


def warnings(cell: Cell) -> list[str]:
    """What makes the figures doubtful."""
    told = []
    whole = [sample for sample in cell.samples if sample.ending == "ok"]
    if len(whole) < 5:
        told.append(f"{cell.name}: only {len(whole)} whole answers; ask for more with --requests or --repeats")
    tpots = [sample.tpot_s for sample in whole if sample.tpot_s]
    if tpots and st.deviation(tpots) > 0.1 * st.mean(tpots):
        part = st.deviation(tpots) / st.mean(tpots)
        told.append(f"{cell.name}: TPOT spreads by {part:.0%} of its mean: is something else running?")
    if whole and sum(not sample.itls_s for sample in whole if sample.n_tokens > 1) * 2 > len(whole):
        told.append(f"{cell.name}: answers came in one chunk: ITL and TPOT say nothing about this server")
    if (off := _off_by(whole)) not in (None, 0):
        told.append(f"{cell.name}: prompts are off their length by up to {off} tokens: the server cannot count for us")
    if cell.seen.get("throttled"):
        told.append(f"{cell.name}: the machine throttled ({cell.seen['throttled']})")
    return told


def output_tok_s(cell: Cell, round_: int) -> float:
    """Output tokens per second of one round."""
    n = sum(sample.n_tokens for sample in cell.samples if sample.round == round_ and sample.ending == "ok")
    return n / cell.durations_s[round_]


def _goodput(cell: Cell, slo: Slo | None, duration_s: float) -> float | None:
    if slo is None or not duration_s:
        return None
    return sum(slo.kept_by(sample) for sample in cell.samples) / duration_s


def _spread(name: str, values_s: Sequence[float | None]) -> dict[str, float | None]:
    known = [value * 1e3 for value in values_s if value is not None]
    if not known:
        return {f"{kind}_{name}_ms": None for kind in ("mean", "median", "std", *(f"p{q}" for q in PERCENTILES))}
    return {
        f"mean_{name}_ms": st.mean(known),
        f"median_{name}_ms": st.median(known),
        f"std_{name}_ms": st.deviation(known),
        **{f"p{q}_{name}_ms": st.percentile(known, q) for q in PERCENTILES},
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return st.median(known) if known else None


def _prefill_tok_s(sample: Sample) -> float | None:
    if not sample.prefill_s or sample.n_prompt is None:
        return None
    return (sample.n_prompt - (sample.n_cached or 0)) / sample.prefill_s


def _cache_hits(samples: Sequence[Sample]) -> float | None:
    """Cached of all prompt tokens, where the server tells."""
    told = [sample for sample in samples if sample.n_cached is not None and sample.n_prompt]
    n = sum(sample.n_prompt or 0 for sample in told)
    return sum(sample.n_cached or 0 for sample in told) / n if n else None


def _acceptance(samples: Sequence[Sample]) -> float | None:
    drafted = sum(sample.n_drafted for sample in samples)
    return sum(sample.n_accepted for sample in samples) / drafted if drafted else None


def _off_by(samples: Sequence[Sample]) -> int | None:
    """The largest distance between a prompt's wanted and counted length; None where nothing was wanted."""
    pairs = [(sample.n_wanted, sample.n_prompt) for sample in samples]
    return max((abs(n - wanted) for wanted, n in pairs if wanted is not None and n is not None), default=None)

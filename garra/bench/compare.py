"""Do two runs differ, and by how much? Refuses what cannot be compared; calls noise noise. Pure.

A metric differs when all of these hold: the ratio of medians is 3 % or more off 1; its bootstrap interval (99 %, rounds
resampled before values) leaves out 1; the values differ by rank (Mann-Whitney, p < 0.01); and so do the medians of the
rounds (p < 0.05). No one test is enough: values of one round share what the machine did meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from garra.bench import statistics as st
from garra.bench import summary
from garra.bench.words import Below, Cell, Run
from garra.errors import BadRequest

FLOOR = 0.03
"""Differences below this are not called, however sure: no two starts of an engine are more alike."""
_P = 0.01
_P_OF_ROUNDS = 0.05
_CONFIDENCE = 0.99
_MIN_VALUES = 5
Verdict = Literal["no difference", "faster", "slower", "too few values"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one cell in both runs; `ratio` is b / a."""

    cell: str
    metric: str
    a: float
    b: float
    ratio: st.Interval
    p: float
    verdict: Verdict


def objections(a: Run, b: Run, allowed: Sequence[str] = ()) -> list[str]:
    """Why these two say nothing about each other; `allowed` may differ: host, engine, model."""
    told = []
    hosts = {key for key in a.host.keys() | b.host.keys() if a.host.get(key) != b.host.get(key)}
    if hosts and "host" not in allowed:
        told.append(
            "hosts differ: " + ", ".join(f"{key} {a.host.get(key)} | {b.host.get(key)}" for key in sorted(hosts))
        )
    if a.engine != b.engine and "engine" not in allowed:
        told.append(f"engines differ: {a.engine} | {b.engine}")
    if a.model != b.model and "model" not in allowed:
        told.append(f"models differ: {a.model} | {b.model}")
    if not {cell.name for cell in a.cells} & {cell.name for cell in b.cells}:
        told.append("they share no workload under the same load")
    return told


def compare(a: Run, b: Run, below: Below, allowed: Sequence[str] = ()) -> list[Difference]:
    """Every metric of every cell both have. Raises BadRequest where they cannot be compared."""
    if told := objections(a, b, allowed):
        raise BadRequest(
            f"cannot compare {a.id} with {b.id}: {'; '.join(told)}",
            fix="measure both here, or allow it: --across host, --across engine, --across model",
        )
    others = {cell.name: cell for cell in b.cells}
    pairs = [(cell, others[cell.name]) for cell in a.cells if cell.name in others]
    return [difference for one, other in pairs for difference in _of_cells(one, other, below)]


def settings_that_differ(a: Run, b: Run) -> Mapping[str, tuple[Any, Any]]:
    """How they were served or asked otherwise: usually the very thing that is compared."""
    keys = sorted(a.settings.keys() | b.settings.keys())
    return {
        key: (a.settings.get(key), b.settings.get(key)) for key in keys if a.settings.get(key) != b.settings.get(key)
    }


def _of_cells(a: Cell, b: Cell, below: Below) -> list[Difference]:
    metrics: tuple[tuple[str, st.Groups, st.Groups, bool], ...] = (
        ("TTFT ms", _ms(a, "ttft_s"), _ms(b, "ttft_s"), True),
        ("TPOT ms", _ms(a, "tpot_s"), _ms(b, "tpot_s"), True),
        ("E2EL ms", _ms(a, "e2e_s"), _ms(b, "e2e_s"), True),
        ("output tok/s", _throughput(a), _throughput(b), False),
    )
    return [_difference(a.name, *metric, below) for metric in metrics]


def _difference(cell: str, metric: str, a: st.Groups, b: st.Groups, less_is_better: bool, below: Below) -> Difference:
    flat_a, flat_b = [v for group in a for v in group], [v for group in b for v in group]
    if len(flat_a) < _MIN_VALUES or len(flat_b) < _MIN_VALUES:
        nan = float("nan")
        return Difference(
            cell, metric, st.median(flat_a), st.median(flat_b), st.Interval(nan, nan, nan), 1.0, "too few values"
        )
    ratio = st.ratio_of_medians(a, b, below, confidence=_CONFIDENCE)
    p = st.differ_by_rank(flat_a, flat_b)
    verdict: Verdict = "no difference"
    differs = ratio.low > 1 or ratio.high < 1
    if differs and abs(ratio.value - 1) >= FLOOR and p < _P and _rounds_p(a, b) < _P_OF_ROUNDS:
        verdict = "slower" if (ratio.value > 1) is less_is_better else "faster"
    return Difference(cell, metric, st.median(flat_a), st.median(flat_b), ratio, p, verdict)


def _rounds_p(a: st.Groups, b: st.Groups) -> float:
    """Whether the rounds as wholes differ by rank."""
    return st.differ_by_rank([st.median(group) for group in a], [st.median(group) for group in b])


def _ms(cell: Cell, name: str) -> list[list[float]]:
    """The values of each round that has any."""
    groups: dict[int, list[float]] = {}
    for sample in cell.samples:
        value = getattr(sample, name)
        if sample.ending == "ok" and value is not None:
            groups.setdefault(sample.round, []).append(value * 1e3)
    return list(groups.values())


def _throughput(cell: Cell) -> list[list[float]]:
    return [[summary.output_tok_s(cell, number)] for number in range(len(cell.durations_s))]

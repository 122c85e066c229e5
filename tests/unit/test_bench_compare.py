"""Runs: figures under known keys, kept and read back whole, compared only where that means something."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from garra import paths
from garra.bench import history, summary
from garra.bench.compare import compare, objections, settings_that_differ
from garra.bench.words import Cell, Run, Sample, Slo
from garra.errors import BadRequest
from garra.store import Store


def made(seed: int, *, slower: float = 1.0, rounds: int = 5, n: int = 6, drift: float = 0.03) -> Run:
    """A run of a noisy machine: values differ by 4 %, rounds by `drift`, the whole run by another 1 %."""
    dice = random.Random(seed)
    whole = dice.gauss(1, 0.01) * slower
    samples, durations = [], []
    for round_ in range(rounds):
        now = whole * dice.gauss(1, drift)
        for place in range(n):
            gap = 0.01 * now * dice.gauss(1, 0.04)
            first = 0.3 * now * dice.gauss(1, 0.04)
            stamps = tuple(first + gap * number for number in range(20))
            samples.append(
                Sample("chat", "c1", round_, place * 0.5, stamps, stamps[-1], "ok", 200, 50, 50, 0, 20, "stop")
            )
        durations.append(0.5 * n * now)
    cell = Cell("chat", "c1", 1, None, tuple(samples), tuple(durations), {"ram_mib": 300})
    return Run(f"run-{seed}", "2026-01-01T00:00:00+00:00", "", {"cpu": "x"}, "engine 1", "m", {"slots": 2}, (cell,))


def verdicts(a: Run, b: Run, seed: int = 1) -> dict[str, str]:
    return {one.metric: one.verdict for one in compare(a, b, random.Random(seed).randrange)}


def test_noise_is_called_noise_and_a_tenth_is_found() -> None:
    calls = [verdict for seed in range(40) for verdict in verdicts(made(seed), made(seed + 1000)).values()]
    assert sum(verdict != "no difference" for verdict in calls) <= 4  # of 160
    found = [verdicts(made(seed), made(seed + 1000, slower=1.1, drift=0.01))["TPOT ms"] for seed in range(40)]
    assert found.count("slower") >= 38


def test_more_tokens_per_second_is_faster() -> None:
    told = verdicts(made(1, drift=0.01), made(2, slower=0.8, drift=0.01))
    assert set(told.values()) == {"faster"}


def test_few_values_say_nothing() -> None:
    assert set(verdicts(made(1, rounds=1, n=2), made(2, rounds=1, n=2)).values()) == {"too few values"}


def test_unlike_things_are_not_compared() -> None:
    a = made(1)
    for other, word in (
        (replace(a, host={"cpu": "y"}), "host"),
        (replace(a, engine="engine 2"), "engine"),
        (replace(a, model="n"), "model"),
    ):
        assert objections(a, other)
        assert not objections(a, other, (word,))
        with pytest.raises(BadRequest, match=f"{word}s differ"):
            compare(a, other, random.Random(1).randrange)
    (cell,) = a.cells
    assert "no workload" in objections(a, replace(a, cells=(replace(cell, load="c4"),)))[0]
    assert settings_that_differ(a, replace(a, settings={"slots": 4})) == {"slots": (2, 4)}


def test_figures_have_vllms_keys() -> None:
    figures = summary.summary(made(1).cells[0], Slo(ttft_ms=1000))
    wanted = """duration completed total_input_tokens total_output_tokens request_throughput request_goodput
        output_throughput total_token_throughput mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms
        median_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms p99_itl_ms mean_e2el_ms p99_e2el_ms max_concurrency"""
    assert set(wanted.split()) <= figures.keys()
    assert figures["completed"] == 30
    assert figures["total_output_tokens"] == 600
    assert figures["output_throughput"] == pytest.approx(600 / figures["duration"])
    assert figures["request_goodput"] == pytest.approx(30 / figures["duration"])
    assert figures["p50_ttft_ms"] == pytest.approx(300, rel=0.1)
    assert figures["p50_queue_ms"] is None
    assert figures["seen_ram_mib"] == 300


def test_what_makes_figures_doubtful_is_said() -> None:
    one = made(1)
    (cell,) = one.cells
    assert "only 2 whole answers" in summary.warnings(replace(cell, samples=cell.samples[:2]))[0]
    off = replace(cell.samples[0], n_prompt=210)
    assert any("off their length" in line for line in summary.warnings(replace(cell, samples=(off,) * 9)))
    lumps = tuple(replace(sample, stamps_s=(0.5,)) for sample in cell.samples)
    assert any("one chunk" in line for line in summary.warnings(replace(cell, samples=lumps)))


def test_a_run_is_kept_whole_and_found_again() -> None:
    store = Store(paths.state_db())
    try:
        kept = history.History(store)
        first, second = made(1), replace(made(2), label="tuned", at="2026-01-02T00:00:00+00:00")
        kept.keep(first)
        kept.keep(second)
        kept.keep(second)
        assert kept.get("run-1") == first
        assert kept.get("tuned") == second == kept.get("last")
        assert kept.get("last-1") == first
        assert kept.get("nothing") is None
        assert [row["id"] for row in kept.all()] == ["run-1", "run-2"]
    finally:
        store.close()
    with pytest.raises(BadRequest, match="no run is called"):
        history.find("nothing")


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    document = history.as_json(made(1))
    path.write_text(json.dumps(document))
    assert history.find(str(path)) == made(1)
    assert len(document["cells"][0]["ttfts"]) == 30
    for damage in ("", "{}", '{"garra_run": {}}', path.read_text()[:500], "[]"):
        path.write_text(damage)
        with pytest.raises(BadRequest):
            history.find(str(path))

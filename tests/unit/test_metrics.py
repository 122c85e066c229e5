"""What `/metrics` says is what the docs list and what the dashboard asks for; figures add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from garra.proxy.metrics import COUNTERS, GAUGES, HISTOGRAMS, exposition
from garra.snapshot import EngineStatus
from garra.spec import Phase, Profile
from garra.tally import PromptTally, Tally
from garra.traffic import Usage
from tests.fakes import profiles

DOCS = Path(__file__).parents[2] / "docs"


class OneModel:
    """As much of a fleet as a scrape looks at."""

    def __init__(self) -> None:
        self.counted = Tally()
        self.kept = PromptTally()
        self._profiles = tuple(profiles("demo").values())

    def profiles(self) -> tuple[Profile, ...]:
        return self._profiles

    def tally(self, profile: str) -> Tally:
        return self.counted

    def prompts(self, profile: str) -> PromptTally:
        return self.kept

    def status(self, profile: str) -> EngineStatus:
        return EngineStatus(profile, Phase.READY, slots=2, leases=1, lingering=1, waiting=3)


def scraped(fleet: OneModel) -> dict[str, float]:
    text = exposition(fleet).decode()  # type: ignore[arg-type]
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_answers_add_up() -> None:
    fleet = OneModel()
    fleet.counted.note(Usage(90, 21, 300.0, 400.0, 10, 8, 6), wait_s=0.2, e2e_s=0.95, now=1.0)
    fleet.counted.note(Usage(50, 1, 100.0), wait_s=0.0, e2e_s=0.1, now=2.0)
    seen = scraped(fleet)
    of = '{profile="demo"}'
    assert seen[f"garra_prompt_tokens_total{of}"] == 150
    assert seen[f"garra_prefix_cache_hits_total{of}"] == 10
    assert seen[f"garra_generation_tokens_total{of}"] == 22
    assert seen[f"garra_spec_decode_num_accepted_tokens_total{of}"] == 6
    assert seen[f"garra_time_to_first_token_seconds_sum{of}"] == pytest.approx(0.6)
    assert seen[f"garra_time_to_first_token_seconds_count{of}"] == 2
    assert seen[f"garra_request_time_per_output_token_seconds_sum{of}"] == pytest.approx(0.02)
    assert seen[f"garra_request_time_per_output_token_seconds_count{of}"] == 1
    assert seen['garra_time_to_first_token_seconds_bucket{le="0.25",profile="demo"}'] == 1
    assert seen[f"garra_slots_busy{of}"] == 2
    assert seen[f"garra_num_requests_waiting{of}"] == 3


def names() -> set[str]:
    return {f"garra_{title}" for title, *_ in (*COUNTERS, *GAUGES, *HISTOGRAMS)}


def test_every_metric_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert [name for name in names() if name not in text] == []


def test_the_dashboard_asks_for_metrics_there_are() -> None:
    dashboard = json.loads((DOCS / "grafana" / "garra.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"garra_\w+", target["expr"])
    }
    offered = set(scraped(OneModel()))
    known = {re.sub(r"\{.*", "", name) for name in offered}
    assert asked - known == set()
    assert len(asked) > 12

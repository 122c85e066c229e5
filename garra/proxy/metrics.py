"""`/metrics`: the fleet's counters in Prometheus's text format, read when scraped. What vLLM has a name for has that.

docs/metrics.md lists them; docs/grafana/ has a dashboard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from garra.ports import Fleet
from garra.snapshot import EngineStatus
from garra.spec import Cause, Phase
from garra.tally import PROMPT_EVENTS, Histogram, PromptTally, Tally
from garra.traffic import Outcome

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_ONE = ("profile",)

COUNTERS: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    ("prompt_tokens", "Prompt tokens of whole answers, those from the cache included.", lambda t: t.n_prompt),
    ("generation_tokens", "Tokens generated.", lambda t: t.n_decoded),
    ("prefix_cache_queries", "Prompt tokens looked up in the prompt cache.", lambda t: t.n_prompt),
    ("prefix_cache_hits", "Prompt tokens found there.", lambda t: t.n_cached),
    ("spec_decode_num_draft_tokens", "Tokens drafted.", lambda t: t.n_drafted),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", lambda t: t.n_accepted),
    ("retries", "Requests asked once more after an engine died.", lambda t: t.retries),
    ("truncated", "Conversations that lost their middle to fit.", lambda t: t.truncated),
    ("swaps", "Loads for which another model had to leave.", lambda t: t.swaps),
)
GAUGES: tuple[tuple[str, str, Callable[[EngineStatus], float]], ...] = (
    ("num_requests_running", "Requests that have a slot.", lambda s: s.leases),
    ("num_requests_waiting", "Requests that wait for one.", lambda s: s.waiting),
    ("slots", "Slots of the engine.", lambda s: s.slots),
    ("slots_busy", "Slots in use, those included whose client left.", lambda s: s.leases + s.lingering),
    ("engine_ready", "1 while the engine is READY.", lambda s: s.phase is Phase.READY),
    ("engine_rss_bytes", "RAM the engine holds.", lambda s: (s.rss_mib or 0) * 1024 * 1024),
)
PROMPT_COUNTERS: tuple[tuple[str, str, Callable[[PromptTally], float]], ...] = (
    ("bytes", "Bytes written for them.", lambda t: t.n_bytes),
    ("tokens", "Prompt tokens that need not be computed again.", lambda t: t.n_tokens),
    ("save_seconds", "Time swaps waited for saves.", lambda t: t.save_s),
    ("restore_seconds", "Time starts waited for restores.", lambda t: t.restore_s),
)
HISTOGRAMS: tuple[tuple[str, str, Callable[[Tally], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Arrival to first token: queue, load and prefill.", lambda t: t.ttft),
    ("request_time_per_output_token_seconds", "Decode time per token after the first.", lambda t: t.tpot),
    ("e2e_request_latency_seconds", "Arrival to the last byte.", lambda t: t.e2e),
    ("request_queue_time_seconds", "Arrival to a slot; a load is part of it.", lambda t: t.wait),
    ("request_prefill_time_seconds", "Prefill, by the engine's clock.", lambda t: t.prefill),
    ("request_decode_time_seconds", "Decode, by the engine's clock.", lambda t: t.decode),
    ("load_seconds", "From a start to READY.", lambda t: t.load),
)


def exposition(fleet: Fleet) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(fleet))
    return bytes(generate_latest(registry))


class _Scrape(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        names = [profile.name for profile in self._fleet.profiles()]
        tallies = {name: self._fleet.tally(name) for name in names}
        states = {name: self._fleet.status(name) for name in names}
        for title, told, count in COUNTERS:
            counter = CounterMetricFamily(f"garra_{title}", told, labels=_ONE)
            for name, tally in tallies.items():
                counter.add_metric([name], count(tally))
            yield counter
        for title, told, value in GAUGES:
            gauge = GaugeMetricFamily(f"garra_{title}", told, labels=_ONE)
            for name, state in states.items():
                gauge.add_metric([name], value(state))
            yield gauge
        for title, told, of in HISTOGRAMS:
            histogram = HistogramMetricFamily(f"garra_{title}", told, labels=_ONE)
            for name, tally in tallies.items():
                histogram.add_metric([name], _buckets(of(tally)), of(tally).total)
            yield histogram
        yield from _by_reason(tallies)
        yield from _prompts({name: self._fleet.prompts(name) for name in names})


def _by_reason(tallies: dict[str, Tally]) -> Iterable[Metric]:
    requests = CounterMetricFamily("garra_requests", "Requests by how they ended.", labels=("profile", "outcome"))
    stops = CounterMetricFamily("garra_engine_stops", "Engines that left memory.", labels=("profile", "cause"))
    restarts = CounterMetricFamily("garra_engine_restarts", "Starts after a failure.", labels=("profile", "cause"))
    mended = CounterMetricFamily(
        "garra_mended", "What garra mended for clients or engines.", labels=("profile", "what")
    )
    for name, tally in tallies.items():
        for what, n in tally.mended.items():
            mended.add_metric([name, what], n)
        for outcome in Outcome:
            requests.add_metric([name, outcome], tally.outcomes[outcome])
        for cause in Cause:
            stops.add_metric([name, cause], tally.stops[cause])
            restarts.add_metric([name, cause], tally.restarts[cause])
    return (requests, stops, restarts, mended)


def _prompts(tallies: dict[str, PromptTally]) -> Iterable[Metric]:
    """What became of slots' contents over swaps."""
    events = CounterMetricFamily(
        "garra_kept_prompts", "Prompts kept over a swap, by what was done with them.", labels=("profile", "event")
    )
    for name, tally in tallies.items():
        for event in PROMPT_EVENTS:
            events.add_metric([name, event], tally.events[event])
    yield events
    for title, told, value in PROMPT_COUNTERS:
        counter = CounterMetricFamily(f"garra_kept_prompt_{title}", told, labels=_ONE)
        for name, tally in tallies.items():
            counter.add_metric([name], value(tally))
        yield counter


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Bounds with cumulative counts, as the format wants them."""
    sums = itertools.accumulate(histogram.counts)
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, sums, strict=True)]

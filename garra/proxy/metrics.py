"""`/metrics`: the fleet's counters in Prometheus's text format, read when scraped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from garra.ports import Fleet
from garra.spec import Cause, Phase
from garra.tally import Histogram
from garra.traffic import Outcome

METRICS_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def exposition(fleet: Fleet) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(fleet))
    return bytes(generate_latest(registry))


class _Scrape(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("garra_requests", "Requests by how they ended.", labels=("profile", "outcome"))
        retries = CounterMetricFamily("garra_retries", "Requests asked once more after an engine died.", labels=_ONE)
        truncated = CounterMetricFamily("garra_truncated", "Conversations that lost their middle to fit.", labels=_ONE)
        tokens = CounterMetricFamily("garra_tokens", "Tokens processed and generated.", labels=_ONE)
        swaps = CounterMetricFamily("garra_swaps", "Loads for which another model had to leave.", labels=_ONE)
        stops = CounterMetricFamily("garra_engine_stops", "Engines that left memory.", labels=("profile", "cause"))
        restarts = CounterMetricFamily("garra_engine_restarts", "Starts after a failure.", labels=("profile", "cause"))
        wait = HistogramMetricFamily("garra_queue_wait_seconds", "From arrival to a slot.", labels=_ONE)
        load = HistogramMetricFamily("garra_load_seconds", "From a start to READY.", labels=_ONE)
        waiting = GaugeMetricFamily("garra_queue_depth", "Requests that wait.", labels=_ONE)
        slots = GaugeMetricFamily("garra_slots", "Slots of the engine.", labels=_ONE)
        busy = GaugeMetricFamily("garra_slots_busy", "Slots in use.", labels=_ONE)
        up = GaugeMetricFamily("garra_engine_ready", "1 while the engine is READY.", labels=_ONE)
        for profile in self._fleet.profiles():
            label = [profile.name]
            tally, status = self._fleet.tally(profile.name), self._fleet.status(profile.name)
            for outcome in Outcome:
                requests.add_metric([*label, outcome], tally.outcomes[outcome])
            for cause in Cause:
                stops.add_metric([*label, cause], tally.stops[cause])
                restarts.add_metric([*label, cause], tally.restarts[cause])
            retries.add_metric(label, tally.retries)
            truncated.add_metric(label, tally.truncated)
            tokens.add_metric(label, tally.tokens)
            swaps.add_metric(label, tally.swaps)
            wait.add_metric(label, _buckets(tally.wait), tally.wait.total)
            load.add_metric(label, _buckets(tally.load), tally.load.total)
            waiting.add_metric(label, status.waiting)
            slots.add_metric(label, status.slots)
            busy.add_metric(label, status.leases + status.lingering)
            up.add_metric(label, status.phase is Phase.READY)
        return (requests, retries, truncated, tokens, swaps, stops, restarts, wait, load, waiting, slots, busy, up)


_ONE = ("profile",)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Bounds with cumulative counts, as the format wants them."""
    sums = itertools.accumulate(histogram.counts)
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, sums, strict=True)]

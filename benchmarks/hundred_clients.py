"""A hundred clients at once, a reader that stalls, and a burst of a thousand: what each of them feels.

The engine is a C stub with 100 ms to the first token and 50 events a second, so all the rest is garra (and this load
client, which shares the machine). Four parts:

 1. 100 clients, 100 slots: time to the first token, answers lost, growth of garra's memory over the rounds.
 2. 100 clients, 8 slots: the same, with the queue's share of it taken from /metrics.
 3. One client that does not read its 40 MB beside 50 that do: garra's memory, and the others' time to the first token.
 4. 1,000 requests at once on 8 slots and a queue of 128: who is refused is told when to come back, the rest complete.

    python benchmarks/hundred_clients.py [--check]

`--check` fails when a target is missed. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.stubs import stubbed  # noqa: E402
from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from tests.support import Garra  # noqa: E402

FIRST_TOKEN_US, EVENT_EVERY_US = 100_000, 20_000
ROUNDS = 5
TARGETS = {"p95_ttft_ms": 500.0, "lost": 0, "rss_growth_mb": 4.0, "stalled_rss_growth_mb": 4.0}


@dataclass
class Answer:
    """One request as its client saw it."""

    status: int = 0
    ttft_s: float = 0.0
    whole: bool = False
    retry_after_s: int | None = None
    seconds: float = 0.0


@dataclass
class Load:
    """Requests to one garra."""

    garra: Garra
    host: str = field(init=False)
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.host, port = self.garra.url.removeprefix("http://").split(":")
        self.port = int(port)

    async def ask(self, client: str, n_events: int) -> Answer:
        """One streamed answer, read to its end."""
        answer, begin = Answer(), time.monotonic()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            writer.write(request(client, n_events))
            head = await reader.readuntil(b"\r\n\r\n")
            answer.status = int(head.split()[1])
            if (told := re.search(rb"Retry-After: (\d+)", head)) is not None:
                answer.retry_after_s = int(told[1])
            if answer.status == 200:
                await reader.readuntil(b"data: {")
                answer.ttft_s = time.monotonic() - begin
                await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                answer.whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
        answer.seconds = time.monotonic() - begin
        return answer

    async def crowd(self, n: int, n_events: int) -> list[Answer]:
        return await asyncio.gather(*(self.ask(f"client {number}", n_events) for number in range(n)))

    def rss_mb(self) -> float:
        assert self.garra.process is not None
        return float(psutil.Process(self.garra.process.pid).memory_info().rss) / 1e6

    def queue_wait_s(self) -> tuple[float, int]:
        """Sum of all waits so far and how many there were."""
        text = httpx.get(f"{self.garra.url}/metrics").text
        total = re.search(r'garra_request_queue_time_seconds_sum\{profile="demo"\} (\S+)', text)
        count = re.search(r'garra_request_queue_time_seconds_count\{profile="demo"\} (\S+)', text)
        assert total is not None
        assert count is not None
        return float(total[1]), int(float(count[1]))


def request(client: str, n_events: int, *, every_us: int = EVENT_EVERY_US) -> bytes:
    body: dict[str, Any] = {"model": "demo", "stream": True, "events": n_events}
    body |= {"delay_us": FIRST_TOKEN_US, "interval_us": every_us}
    encoded = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Garra-Client: {client}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n".encode() + encoded


def profile(slots: int, max_queue: int) -> str:
    return f'mode = "high_throughput"\nslots = {slots}\nmax_queue = {max_queue}\ncontext = 512\n'


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


async def hundred_slots() -> dict[str, float]:
    with stubbed(profile(100, 128)) as garra:
        load = Load(garra)
        await load.crowd(100, 50)  # the first crowd makes buffers grow to their size
        before, answers = load.rss_mb(), []
        for _ in range(ROUNDS):
            answers += await load.crowd(100, 50)
        grown = load.rss_mb() - before
    return {
        "p95_ttft_ms": round(p95([a.ttft_s for a in answers]) * 1e3, 1),
        "p50_ttft_ms": round(statistics.median(a.ttft_s for a in answers) * 1e3, 1),
        "lost": sum(not answer.whole for answer in answers),
        "rss_growth_mb": round(grown, 2),
    }


async def eight_slots() -> dict[str, float]:
    with stubbed(profile(8, 128)) as garra:
        load = Load(garra)
        answers = await load.crowd(100, 20)
        wait_s, n = load.queue_wait_s()
    ttfts = [answer.ttft_s for answer in answers]
    return {
        "p95_ttft_ms_8_slots": round(p95(ttfts) * 1e3, 1),
        "mean_ttft_ms_8_slots": round(statistics.mean(ttfts) * 1e3, 1),
        "mean_queue_ms_8_slots": round(wait_s / n * 1e3, 1),
        "lost_8_slots": sum(not answer.whole for answer in answers),
    }


async def stalled_reader() -> dict[str, float]:
    with stubbed(profile(100, 128)) as garra:
        load = Load(garra)
        await load.crowd(50, 50)
        alone = await load.crowd(50, 50)
        before = load.rss_mb()
        _, writer = await asyncio.open_connection(load.host, load.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request("stalled", 160_000, every_us=1))
        await asyncio.sleep(2)
        beside = await load.crowd(50, 50)
        grown = load.rss_mb() - before
        writer.transport.abort()
    return {
        "stalled_rss_growth_mb": round(grown, 2),
        "stalled_p95_ttft_ratio": round(p95([a.ttft_s for a in beside]) / p95([a.ttft_s for a in alone]), 2),
        "lost_beside_stalled": sum(not answer.whole for answer in beside),
    }


async def burst() -> dict[str, float]:
    with stubbed(profile(8, 128)) as garra:
        load = Load(garra)
        await load.crowd(40, 10)  # a service time is measured
        begin = time.monotonic()
        answers = await load.crowd(1000, 10)
        drained_s = time.monotonic() - begin
    refused = [answer for answer in answers if answer.status == 429]
    told = [answer.retry_after_s or 0 for answer in refused]
    return {
        "burst_complete": sum(answer.whole for answer in answers),
        "burst_refused": len(refused),
        "burst_lost": sum(not answer.whole and answer.status != 429 for answer in answers),
        "retry_after_min_s": min(told, default=0),
        "retry_after_max_s": max(told, default=0),
        "burst_drained_s": round(drained_s, 1),
    }


def main() -> int:
    options = parser(__doc__).parse_args()
    result: dict[str, float] = {}
    for part in (hundred_slots, eight_slots, stalled_reader, burst):
        measured = asyncio.run(part())
        print(f"{part.__name__}: {measured}", file=sys.stderr)
        result |= measured
    missed = [name for name, limit in TARGETS.items() if result[name] > limit]
    missed += [name for name in ("lost_8_slots", "lost_beside_stalled", "burst_lost") if result[name]]
    if not 1 <= result["retry_after_min_s"] <= result["retry_after_max_s"] <= 60:
        missed.append("retry_after")
    return conclude(result, missed, check=options.check)


if __name__ == "__main__":
    sys.exit(main())

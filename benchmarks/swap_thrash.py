"""Two models, memory for one: what the scheduler makes of requests that alternate between them.

Two real engines (the demo model under two profiles) share a budget that holds one of them. 40 requests A B A B ... come
from 4 clients within a second, 32 tokens each. The same requests run twice, interleaved with a fresh garra each time:
once with garra's own order, once strictly in the order of arrival (`swap_order = "fifo"`: a swap whenever the head of
the queue wants the other model; neighbours of one model still run side by side). The same code, slots and prompts.

    python benchmarks/swap_thrash.py [--rounds N] [--check]

`--check` fails when a target is missed. The last line is one JSON object; ratios are medians over rounds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from garra import config  # noqa: E402
from tests.support import Garra  # noqa: E402

N_REQUESTS, N_CLIENTS, N_TOKENS, SPREAD_S = 40, 4, 32, 1.0
TARGETS = {"makespan_ratio": 0.4, "swaps": 6}


@dataclass
class Run:
    """One pass of all requests."""

    makespan_s: float
    swaps: int
    longest_wait_s: float
    """To the first token."""
    failed: int


def settings(order: str) -> str:
    """Both profiles in 1000 MiB that hold one of them."""
    demo = config.load().profiles["demo"]
    return f"""
swap_order = "{order}"
memory_budget_mib = 1000
[profiles.demo]
memory_mib = 600
[profiles.other]
memory_mib = 600
model = "{demo.model}"
sha256 = "{demo.sha256}"
context = {demo.context}
batch = {demo.batch}
ubatch = {demo.ubatch}
cache_ram_mib = {demo.cache_ram_mib}
gpu_layers = 0
"""


async def one(client: httpx.AsyncClient, number: int) -> tuple[float, bool]:
    """Seconds to the first token, and whether the answer was whole."""
    await asyncio.sleep(SPREAD_S * number / N_REQUESTS)
    body: dict[str, Any] = {
        "model": ("demo", "other")[number % 2],
        "stream": True,
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": f"Tell me story number {number}."}],
    }
    headers = {"X-Garra-Client": f"client {number % N_CLIENTS}"}
    begin, first, n_deltas, done = time.monotonic(), None, 0, False
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                n_deltas += 1
                first = first or time.monotonic()
            done = done or line == "data: [DONE]"
    return (first or time.monotonic()) - begin, done and reply.status_code == 200 and n_deltas >= N_TOKENS - 2


async def all_of_them(url: str) -> tuple[float, list[tuple[float, bool]]]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=900, limits=limits) as client:
        begin = time.monotonic()
        outcomes = await asyncio.gather(*(one(client, number) for number in range(N_REQUESTS)))
        return time.monotonic() - begin, outcomes


def run(order: str) -> Run:
    garra = Garra().configure(settings(order)).up("demo")
    try:
        makespan_s, outcomes = asyncio.run(all_of_them(garra.url))
        swaps = sum(row["swaps"] for row in garra.status()["profiles"])
    finally:
        garra.close()
    result = Run(makespan_s, swaps, max(wait for wait, _ in outcomes), sum(not whole for _, whole in outcomes))
    print(f"{order}: {result}", file=sys.stderr)
    return result


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--rounds", type=int, default=3)
    options = options_parser.parse_args()
    fair: list[Run] = []
    fifo: list[Run] = []
    for number in range(options.rounds):
        for order in ("fair", "fifo")[:: 1 if number % 2 else -1]:
            (fair if order == "fair" else fifo).append(run(order))
    max_wait_s = config.load().profiles["demo"].max_wait_s
    result = {
        "makespan_ratio": round(
            statistics.median(a.makespan_s / b.makespan_s for a, b in zip(fair, fifo, strict=True)), 3
        ),
        "swaps": max(one.swaps for one in fair),
        "longest_wait_s": round(max(one.longest_wait_s for one in fair), 2),
        "max_wait_s": max_wait_s,
        "fifo_swaps": max(one.swaps for one in fifo),
        "fifo_longest_wait_s": round(max(one.longest_wait_s for one in fifo), 2),
        "failed": sum(one.failed for one in fair + fifo),
    }
    missed = [name for name, target in TARGETS.items() if result[name] > target]
    missed += ["longest_wait_s"] * (result["longest_wait_s"] > max_wait_s) + ["failed"] * bool(result["failed"])
    return conclude(result, missed, check=options.check)


if __name__ == "__main__":
    sys.exit(main())

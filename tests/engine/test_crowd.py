"""Many clients that come and go at once: every answer is whole or its client left, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import psutil

from tests.support import Garra, eventually


async def one(client: httpx.AsyncClient, rng: random.Random) -> str:
    """One request of a random kind; how it ended."""
    stream, patience = rng.random() < 0.7, rng.choice([0.05, 0.3, 1.0, 600.0, 600.0])
    body: dict[str, Any] = {
        "model": "demo",
        "stream": stream,
        "max_tokens": rng.choice([1, 8, 24]),
        "messages": [{"role": "user", "content": f"Say {rng.randrange(1000)}."}],
    }
    try:
        async with asyncio.timeout(patience):
            async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                text = (await reply.aread()).decode()
    except TimeoutError:
        return "left"
    assert reply.status_code == 200, text
    assert text.endswith("data: [DONE]\n\n") if stream else '"usage"' in text
    return "whole"


async def test_nothing_is_left_behind(served: Garra, soak: bool) -> None:
    assert served.process is not None
    garra = psutil.Process(served.process.pid)
    rng = random.Random(5)
    async with httpx.AsyncClient(base_url=served.url, timeout=600) as client:
        await one(client, random.Random(1))
        files, threads = garra.num_fds(), garra.num_threads()
        outcomes: list[str] = []
        for _ in range(20 if soak else 2):
            outcomes += await asyncio.gather(*(one(client, rng) for _ in range(30)))
    assert {"whole", "left"} <= set(outcomes)
    await asyncio.to_thread(eventually, lambda: served.engine()["leases"] == 0)
    await asyncio.to_thread(eventually, lambda: served.busy_slots() == 0, 30)
    await asyncio.to_thread(eventually, lambda: garra.num_fds() <= files + 1, 30)
    assert garra.num_threads() <= threads + 1
    assert served.engine()["restarts"] == 0

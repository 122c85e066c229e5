"""Eight clients, four long prefixes, four slots: how much of the prompts is found in a slot.

Each client holds short exchanges that begin with one of four prefixes, two clients to a prefix, one request at a time,
in random pauses. Once through garra, whose queue lets those go ahead whose prompt a free slot holds, and once at the
same engine directly, which takes them as they come and picks the slot itself. The same engine, prompts and order in
both; without the engine's prompt cache in RAM (`cache_ram_mib = 0`), which would bring back what was overwritten as
long as it is large enough for all of it.

    python benchmarks/steering.py [--rounds N] [--check]

`--check` fails when a target is missed. The last line is one JSON object; figures are medians over rounds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from tests.support import Garra, words  # noqa: E402

N_CLIENTS, N_PREFIXES, N_TURNS = 8, 4, 8
PREFIX_WORDS = 120
LEAST_GAIN = 1.3
SETTINGS = """
[profiles.demo]
slots = 4
context = 2048
cache_ram_mib = 0
"""


@dataclass
class Count:
    """Tokens of all prompts together."""

    cached: int = 0
    computed: int = 0

    @property
    def share(self) -> float:
        return self.cached / (self.cached + self.computed)


async def client(http: httpx.AsyncClient, number: int, seed: int, count: Count) -> None:
    chance = random.Random(seed * 100 + number)
    prefix = words(PREFIX_WORDS, (number % N_PREFIXES) * 10_000)
    for turn in range(N_TURNS):
        await asyncio.sleep(chance.random() * 0.2)
        messages = [
            {"role": "system", "content": prefix},
            {"role": "user", "content": f"Question {turn} of client {number}?"},
        ]
        body = {"model": "demo", "messages": messages, "max_tokens": chance.randrange(4, 24), "temperature": 0}
        reply = await http.post("/v1/chat/completions", json=body, headers={"X-Garra-Client": str(number)})
        timings = reply.json()["timings"]
        count.cached += timings["cache_n"]
        count.computed += timings["prompt_n"]


async def crowd(seed: int, *, url: str = "http://engine", socket: str | None = None) -> Count:
    count = Count()
    transport = httpx.AsyncHTTPTransport(uds=socket) if socket is not None else None
    async with httpx.AsyncClient(base_url=url, transport=transport, timeout=600) as http:
        await asyncio.gather(*(client(http, number, seed, count) for number in range(N_CLIENTS)))
    return count


def run(seed: int, *, steered: bool) -> Count:
    garra = Garra().configure(SETTINGS).up("demo")
    try:
        if steered:
            return asyncio.run(crowd(seed, url=garra.url))
        return asyncio.run(crowd(seed, socket=garra.engine_socket()))
    finally:
        garra.close()


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--rounds", type=int, default=3)
    options = options_parser.parse_args()
    gains, ours, theirs = [], [], []
    for number in range(options.rounds):
        pair = {steered: run(number, steered=steered) for steered in (True, False)[:: 1 if number % 2 else -1]}
        ours.append(pair[True].share)
        theirs.append(pair[False].share)
        gains.append(pair[False].computed / pair[True].computed)
        print(f"garra {pair[True]}, the engine's own choice {pair[False]}", file=sys.stderr)
    result = {
        "cached_share": round(statistics.median(ours), 3),
        "cached_share_engine": round(statistics.median(theirs), 3),
        "fewer_tokens_prefilled": round(statistics.median(gains), 2),
    }
    gain = result["fewer_tokens_prefilled"]
    return conclude(result, [f"{gain}x < {LEAST_GAIN}x"] if gain < LEAST_GAIN else [], check=options.check)


if __name__ == "__main__":
    sys.exit(main())

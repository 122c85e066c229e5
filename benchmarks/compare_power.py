"""Does `garra bench compare` call noise noise, and find a tenth? Pairs of short real runs, alike and one slowed down.

The slowdown is planted by a relay that hands every piece of an answer on when 1.1 times its own time has passed.

    python benchmarks/compare_power.py [--pairs 20] [--check]

`--check` fails when a target is missed. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from garra.bench.compare import compare  # noqa: E402
from garra.bench.session import Wish, measure  # noqa: E402
from garra.bench.target import Target  # noqa: E402
from garra.bench.words import Run  # noqa: E402
from tests.support import Garra  # noqa: E402

WISH = Wish(concurrency=(1,), requests=6, repeats=5, n_prompt=64, n_output=24)
SLOWER = 1.1
TARGETS = {"pairs_alike_called_alike": 0.95, "pairs_with_a_tenth_found": 0.95}


async def one_run(url: str, seed: int) -> Run:
    """A short run against the server at `url`."""
    async with Target(url, "demo") as target:
        served = await target.served()
        wish = replace(WISH, seed=seed)
        cells = await measure(target, wish, pids=list, stage=lambda what, n: None, told=lambda sample: None)
    return Run(f"seed-{seed}", "", "", {}, served.engine, served.model, {}, cells)


@contextlib.asynccontextmanager
async def slowed(url: str, factor: float) -> AsyncIterator[str]:
    """The address of a relay to `url` whose answers take `factor` times as long."""
    host, port = url.removeprefix("http://").split(":")
    clock = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        began = clock()
        later: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def ask() -> None:
            while data := await reader.read(65536):
                up_writer.write(data)
            up_writer.close()

        async def receive() -> None:
            while data := await up_reader.read(65536):
                later.put_nowait((began + (clock() - began) * factor, data))
            later.put_nowait((0.0, b""))

        async def answer() -> None:
            while (piece := await later.get())[1]:
                await asyncio.sleep(max(0.0, piece[0] - clock()))
                writer.write(piece[1])
            writer.close()

        await asyncio.gather(ask(), receive(), answer(), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def rounds(url: str, pairs: int) -> tuple[Counter[str], Counter[str], int, int]:
    """Verdicts on all metrics of pairs alike and of pairs with one slowed; pairs called alike, pairs found."""
    alike: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    n_alike = n_found = 0
    async with slowed(url, SLOWER) as slow:
        for pair in range(pairs):
            a, b = await one_run(url, 3 * pair), await one_run(url, 3 * pair + 1)
            c = await one_run(slow, 3 * pair + 2)
            below = random.Random(pair).randrange
            told, found = compare(a, b, below), compare(a, c, below)
            alike.update(one.verdict for one in told)
            planted.update(one.verdict for one in found)
            n_alike += all(one.verdict == "no difference" for one in told)
            n_found += any(one.verdict == "slower" for one in found) and all(one.verdict != "faster" for one in found)
            shown = ", ".join(f"{one.metric} {one.ratio.value:.3f} | {two.ratio.value:.3f}"
                              for one, two in zip(told, found, strict=True))  # fmt: skip
            print(f"pair {pair + 1}: alike | slowed: {shown}", file=sys.stderr, flush=True)
    return alike, planted, n_alike, n_found


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=20)
    options = made.parse_args()
    garra = Garra().up("demo")
    try:
        alike, planted, n_alike, n_found = asyncio.run(rounds(garra.url, options.pairs))
    finally:
        garra.close()
    result = {
        "pairs": options.pairs,
        "pairs_alike_called_alike": n_alike / options.pairs,
        "pairs_with_a_tenth_found": n_found / options.pairs,
        "alike": dict(alike),
        "slowed": dict(planted),
    }
    missed = [f"{name}: {result[name]} (target {target})" for name, target in TARGETS.items() if result[name] < target]
    return conclude(result, missed, check=options.check)


if __name__ == "__main__":
    sys.exit(main())

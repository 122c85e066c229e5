"""One trial: an engine started for it alone, warmed up, asked, and gone again. Whatever goes wrong is its result."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from garra import gpus, hardware
from garra.bench import sizing
from garra.bench import statistics as st
from garra.bench.load import Label, closed_loop
from garra.bench.machine import Watch
from garra.bench.session import dice
from garra.bench.target import Target
from garra.bench.words import Sample, Talk
from garra.bench.workload import kind_of
from garra.errors import EngineDown
from garra.ports import EngineHttp, EngineProcess, Spawner
from garra.spec import MIB, EngineExit, LaunchPlan
from garra.supervisor.shield import to_the_end

Objective = Literal["tps", "ttft", "throughput", "balanced"]
_PROBE_S = 0.02
_GRACE_S = 5.0
_SINGLE = 2
"""Requests of one client alone, in each trial."""
_TRIES = 3
_COOL_S = 10.0
_PATIENCE_S = 120.0
"""How long heat is waited out."""


@dataclass(frozen=True, slots=True)
class Dose:
    """What every trial is asked."""

    workload: str = "chat"
    n_prompt: int = 200
    n_output: int = 48
    streams: int = 4
    limit_s: float = 90.0
    """A trial that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one trial gave."""

    decode_tok_s: float
    """One client alone."""
    ttft_ms: float
    """One client alone."""
    output_tok_s: float
    """All streams together."""
    load_ms: float
    ram_mib: int
    vram_mib: int
    acceptance_rate: float | None = None

    def score(self, objective: Objective) -> float:
        """More is better; balanced is the geometric mean of the other three."""
        match objective:
            case "tps":
                return self.decode_tok_s
            case "ttft":
                return 1e3 / self.ttft_ms
            case "throughput":
                return self.output_tok_s
            case "balanced":
                return float((self.decode_tok_s * self.output_tok_s * 1e3 / self.ttft_ms) ** (1 / 3))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Lab:
    """Starts engines and measures them, one at a time."""

    def __init__(
        self,
        spawner: Spawner,
        bare: Spawner,
        http: EngineHttp,
        dose: Dose,
        seed: int,
        *,
        hot: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spawner = spawner
        self._bare = bare
        """Starts llama-server with its own defaults."""
        self._http = http
        self._dose = dose
        self._dice = dice(seed)
        self._talks: dict[tuple[int, str], list[Talk]] = {}
        """The same for everybody who is measured in a round."""
        self._hot = hot

    async def measure(self, plan: LaunchPlan, round_: int, *, bare: bool = False) -> Figures:
        """The figures of this launch; `bare`: of its model with llama-server's own defaults.

        Raises EngineDown when it does not start, dies, or hangs.
        """
        for _ in range(_TRIES):
            await self._cool_down()
            try:
                async with asyncio.timeout(self._dose.limit_s), self._engine(plan, bare) as (process, load_s):
                    figures, throttled = await self._asked(process, load_s, round_)
            except TimeoutError:
                raise EngineDown(f"it hangs: nothing came of it within {self._dose.limit_s:g} s") from None
            if not throttled:
                return figures
        raise EngineDown("the machine is too hot to measure on: it throttled each time")

    async def _cool_down(self) -> None:
        waited_s = 0.0
        while waited_s < _PATIENCE_S and await asyncio.to_thread(self._hot):
            await asyncio.sleep(_COOL_S)
            waited_s += _COOL_S

    async def _asked(self, process: EngineProcess, load_s: float, round_: int) -> tuple[Figures, bool]:
        """The figures, and whether the machine's clocks were held down meanwhile."""
        dose = self._dose
        async with Target("http://engine", None, socket=process.socket) as target:
            alone = await self._made(target, round_, "alone", _SINGLE)
            crowd = await self._made(target, round_, "crowd", dose.streams)
            warm = await self._made(target, -1, "warm", 1)
            await closed_loop(target, warm, 1, Label(dose.workload, "warm", 0), _ignore)
            with Watch(lambda: [process.pid]) as watch:
                single, _ = await closed_loop(target, alone, 1, Label(dose.workload, "c1", round_), _ignore)
                many, seconds = await closed_loop(
                    target, crowd, dose.streams, Label(dose.workload, f"c{dose.streams}", round_), _ignore
                )
                vram_mib, ram_mib = gpus.held_mib(process.pid), hardware.rss_bytes(process.pid) // MIB
        samples = [*single, *many]
        failed = [sample for sample in samples if sample.ending != "ok"]
        if failed:
            raise EngineDown(f"{len(failed)} of {len(samples)} answers failed: {failed[0].error or failed[0].ending}")
        return _figures(single, many, seconds, load_s, ram_mib, vram_mib), _too_hot(watch.seen())

    async def _made(self, target: Target, round_: int, name: str, n: int) -> list[Talk]:
        key = (round_, name)
        if key not in self._talks:
            kind, sizer = kind_of(self._dose.workload), sizing.Sizer(sizing.counter(target))
            recipes = [
                kind.recipe(self._dice, f"{name} {round_} {place}", self._dose.n_prompt, self._dose.n_output)
                for place in range(n)
            ]
            self._talks[key] = [await sizer.sized(recipe) for recipe in recipes]
        return self._talks[key]

    @contextlib.asynccontextmanager
    async def _engine(self, plan: LaunchPlan, bare: bool) -> AsyncIterator[tuple[EngineProcess, float]]:
        """A READY engine and the seconds it took; ended in the end, whatever happens."""
        clock = asyncio.get_running_loop().time
        began = clock()
        process = await (self._bare if bare else self._spawner).spawn(plan)
        gone = asyncio.ensure_future(process.wait())
        try:
            await self._ready(process, gone)
            work = asyncio.ensure_future(self._http.warm_up(process.socket))
            await _unless_gone(work, gone)
            yield process, clock() - began
            if gone.done():
                raise EngineDown(f"it died: {gone.result()}")
        except EngineDown as error:
            if not gone.done():  # a broken answer is seen before the process's end is
                await asyncio.wait((gone,), timeout=1.0)
            if gone.done() and not str(error.what).startswith("it "):
                raise EngineDown(f"it died: {gone.result()}") from None
            raise
        finally:
            await to_the_end(_end(process, gone))

    async def _ready(self, process: EngineProcess, gone: asyncio.Future[EngineExit]) -> None:
        while not await self._http.healthy(process.socket):
            if gone.done():
                raise EngineDown(f"it did not start: {gone.result()}")
            await asyncio.sleep(_PROBE_S)


async def _unless_gone(work: asyncio.Future[Any], gone: asyncio.Future[EngineExit]) -> None:
    await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    if gone.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise EngineDown(f"it died: {gone.result()}")
    work.result()


async def _end(process: EngineProcess, gone: asyncio.Future[EngineExit]) -> None:
    process.send_signal(signal.SIGTERM)
    await asyncio.wait((gone,), timeout=_GRACE_S)
    if not gone.done():
        process.send_signal(signal.SIGKILL)
        await gone


def _figures(
    single: Sequence[Sample], many: Sequence[Sample], seconds: float, load_s: float, ram_mib: int, vram_mib: int
) -> Figures:
    tpots = [sample.tpot_s for sample in single if sample.tpot_s]
    ttfts = [sample.ttft_s for sample in single if sample.ttft_s]
    if not tpots or not ttfts:
        raise EngineDown("its answers have no tokens to measure")
    drafted = sum(sample.n_drafted for sample in [*single, *many])
    accepted = sum(sample.n_accepted for sample in [*single, *many])
    return Figures(
        decode_tok_s=1 / st.median(tpots),
        ttft_ms=st.median(ttfts) * 1e3,
        output_tok_s=sum(sample.n_tokens for sample in many) / seconds,
        load_ms=load_s * 1e3,
        ram_mib=ram_mib,
        vram_mib=vram_mib,
        acceptance_rate=accepted / drafted if drafted else None,
    )


def _too_hot(seen: Mapping[str, Any]) -> bool:
    """Heat only: a card at its power limit is as it always is."""
    told = str(seen.get("throttled") or "")
    return "thermal" in told or told.startswith("CPU")


def _ignore(sample: Sample) -> None:
    pass

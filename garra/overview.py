"""Makes the snapshot others show: of the fleet, of the machine, and where somebody looks closely, of every slot."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Sequence

from garra import __version__
from garra.bench.statistics import percentile
from garra.bill import plus
from garra.downloads import DownloadStatus
from garra.ports import Clock, EngineHttp, Fleet
from garra.sensors import Sensors
from garra.snapshot import RECENT_S, TREND_STEPS, ProfileReport, Recent, SlotState, Snapshot
from garra.spec import Profile
from garra.tally import Past


class Overview:
    """Holds no state but its parts."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        url: str,
        engine: Callable[[], str],
        clock: Clock,
        http: EngineHttp,
        downloads: Callable[[], Sequence[DownloadStatus]],
    ) -> None:
        self._fleet = fleet
        self._url = url
        self._engine = engine
        self._clock = clock
        self._http = http
        self._downloads = downloads
        self._sensors = Sensors()
        self._started = clock.now()

    async def snapshot(self, *, closely: bool = False) -> Snapshot:
        """`closely`: engines are asked what their slots do, too; one that is slow to say so is left out."""
        profiles = list(self._fleet.profiles())
        slots = dict(await asyncio.gather(*map(self._slots, profiles))) if closely else {}
        reports = tuple(self._profile(profile, slots.get(profile.name, ())) for profile in profiles)
        engines = [report.engine for report in reports]
        pids = [engine.pid for engine in engines if engine.pid]
        devices = await self._sensors.look(pids, plus(*(engine.planned_mib for engine in engines)))
        return Snapshot(
            version=__version__,
            pid=os.getpid(),
            url=self._url,
            uptime_s=self._clock.now() - self._started,
            engine=self._engine(),
            tasks=len(asyncio.all_tasks()),
            profiles=reports,
            devices=devices,
            downloads=tuple(self._downloads()),
        )

    async def _slots(self, profile: Profile) -> tuple[str, tuple[SlotState, ...]]:
        status, socket = self._fleet.status(profile.name), self._fleet.address(profile.name)
        if socket is None or not status.leases + status.lingering:
            return profile.name, ()
        return profile.name, await self._http.slots(socket) or ()

    def _profile(self, profile: Profile, slots: tuple[SlotState, ...]) -> ProfileReport:
        name, tally = profile.name, self._fleet.tally(profile.name)
        return ProfileReport(
            engine=self._fleet.status(name),
            model=profile.model,
            present=self._fleet.present(name),
            aliases=profile.aliases,
            requests=dict(tally.outcomes),
            swaps=tally.swaps,
            retries=tally.retries,
            load_s=tally.last_load_s,
            decoded=tally.n_decoded + sum(slot.n_decoded for slot in slots if slot.busy),
            recent=recent(tuple(tally.recent), self._clock.now()),
            kind=profile.kind,
            slots=slots,
        )


def recent(past: Sequence[Past], now: float) -> Recent:
    """What whole answers of the last while took."""
    late = [one for one in past if now - one.at <= RECENT_S]
    if not late:
        return Recent()
    ttfts = [one.ttft_s * 1e3 for one in late]
    tpots = [one.tpot_s * 1e3 for one in late if one.tpot_s is not None]
    spent_s = now - min(one.at - one.ttft_s for one in late)
    return Recent(
        answers=len(late),
        output_tok_s=sum(one.n_decoded for one in late) / spent_s if spent_s > 0 else None,
        p50_ttft_ms=statistics.median(ttfts),
        p95_ttft_ms=percentile(ttfts, 95),
        p50_tpot_ms=statistics.median(tpots) if tpots else None,
        ttft_trend_ms=_trend(late, now),
    )


def _trend(late: Sequence[Past], now: float) -> tuple[float | None, ...]:
    steps: list[list[float]] = [[] for _ in range(TREND_STEPS)]
    for one in late:
        ago = int((now - one.at) / RECENT_S * TREND_STEPS)
        steps[-1 - min(ago, TREND_STEPS - 1)].append(one.ttft_s * 1e3)
    return tuple(statistics.median(step) if step else None for step in steps)

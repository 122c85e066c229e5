"""A running fleet over fake engines, and requests a test can hold and release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from garra.bill import HOST
from garra.ports import Lease
from garra.spec import Policy
from garra.supervisor.fleet import EngineFleet
from garra.traffic import Outcome, Wish
from tests.fakes import FakeClock, FakeEngines, FakePlans, NoPrompts, profiles


class Stage:
    """A running fleet, its fakes, and requests as tasks a test can hold and release."""

    def __init__(self, fleet: EngineFleet, engines: FakeEngines, clock: FakeClock, plans: FakePlans) -> None:
        self.plans = plans
        self.fleet = fleet
        self.engines = engines
        self.clock = clock
        self.order: list[str] = []

    def request(self, profile: str, label: str = "", wish: Wish | None = None) -> Request:
        return Request(self, profile, label or profile, wish)


class Request:
    """One lease, held until released."""

    def __init__(self, stage: Stage, profile: str, label: str, wish: Wish | None) -> None:
        self.wish = wish or Wish(profile)
        self.outcome = Outcome.COMPLETE
        self.release = asyncio.Event()
        self.lease: Lease | None = None
        self._stage = stage
        self.task = asyncio.ensure_future(self._run(profile, label))

    async def _run(self, profile: str, label: str) -> None:
        async with self._stage.fleet.lease(self.wish) as lease:
            self.lease = lease
            self._stage.order.append(label)
            await self.release.wait()
            lease.ended(self.outcome)

    @property
    def granted(self) -> bool:
        return self.lease is not None

    async def done(self) -> None:
        self.release.set()
        await self.task


@contextlib.asynccontextmanager
async def stage(*names: str, present: bool = True, budget_mib: int = 1000, **changes: object) -> AsyncIterator[Stage]:
    engines, clock, plans = FakeEngines(), FakeClock(), FakePlans(budget_mib)
    changes = {"slots": 8, "mode": "high_throughput"} | changes
    fleet = EngineFleet(
        profiles(*names, **changes),
        Policy({HOST: budget_mib}, fifo=True),
        plans=plans,
        locate=lambda model: Path(model) if present else None,
        spawner=engines,
        http=engines,
        connections=engines,
        memory=engines,
        prompts=NoPrompts(),
        clock=clock,
    )
    async with fleet:
        yield Stage(fleet, engines, clock, plans)

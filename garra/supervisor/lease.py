"""One request's hold on a running engine, and the `async with` around it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from garra.dialogue import Traits
from garra.errors import EngineDied
from garra.spec import ORDERLY
from garra.supervisor.machine import Served
from garra.supervisor.queue import Ticket
from garra.supervisor.runner import Runner
from garra.supervisor.stall import StallWatch
from garra.tally import Tally
from garra.traffic import Outcome, Usage, Waited, WaitNews, Wish

if TYPE_CHECKING:
    from garra.supervisor.fleet import EngineFleet

_NOT_AT_ALL = Waited()
_DEATH_NEWS_S = 2.0  # a broken connection is seen before the process's end is


class RunnerLease:
    """The `Lease` port; what the request reports is read when it ends."""

    __slots__ = ("_runner", "_ticket", "blamed", "drafts", "mends", "outcome", "socket", "truncated", "usage", "waited")

    def __init__(
        self, runner: Runner, socket: Path, ticket: Ticket, drafts: bool = True, waited: Waited = _NOT_AT_ALL
    ) -> None:
        self._runner = runner
        self._ticket = ticket
        self.socket = socket
        self.waited = waited
        self.drafts = drafts
        self.truncated = False
        self.mends: tuple[str, ...] = ()
        self.outcome: Outcome | None = None
        self.usage: Usage | None = None
        self.blamed: bytes | None = None
        """Fingerprint of what was being asked when the engine died of itself."""

    def began(self) -> None:
        self._ticket.answering = True

    def shortened(self) -> None:
        self.truncated = True

    @property
    def traits(self) -> Traits:
        return self._runner.traits

    def mended(self, what: str) -> None:
        self.mends += (what.partition(" ")[0],)

    def ended(self, outcome: Outcome, usage: Usage | None = None) -> None:
        self.outcome, self.usage = outcome, usage
        if outcome is Outcome.COMPLETE and self._runner.machine.attempts:
            self._runner.post(Served())

    def teach(self, tally: Tally, watch: StallWatch | None, now: float) -> None:
        """Write down what the answer took, where the engine told."""
        usage, ticket = self.usage, self._ticket
        if self.mends:
            tally.mended.update(self.mends)
        if usage is None:
            return
        tally.truncated += self.truncated
        tally.note(usage, (ticket.granted or now) - ticket.arrived, now - ticket.arrived, now)
        if watch is not None:
            watch.learn(usage.n_prompt, usage.prompt_ms)

    async def death(self, fingerprint: bytes) -> str:
        self.outcome = Outcome.DIED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_NEWS_S):
                await self._runner.gone.wait()
        machine = self._runner.machine
        if machine.cause not in ORDERLY:
            self.blamed = fingerprint
        return machine.detail or "it closed the connection"


class FleetHold:
    """`async with` over one lease. A class, not a generator: it stands in the way of every request."""

    __slots__ = ("_again", "_fleet", "_lease", "_ticket")

    def __init__(self, fleet: EngineFleet, wish: Wish) -> None:
        self._fleet = fleet
        self._ticket = Ticket(wish, fleet.now())
        self._lease: RunnerLease | None = None
        self._again = False

    async def __aenter__(self) -> RunnerLease:
        lease = None if self._again else self._fleet.enter_at_once(self._ticket)
        if lease is None:
            lease = await self._fleet.enter(self._ticket, again=self._again)
        self._lease = lease
        return lease

    async def __aexit__(self, *exc: object) -> None:
        lease = self._lease
        assert lease is not None
        if lease.outcome is None and isinstance(exc[1], EngineDied):
            lease.outcome = Outcome.DIED
        self._fleet.leave(self._ticket, lease)

    def again(self, fingerprint: bytes) -> None:
        before = self._ticket
        wish = before.wish._replace(fingerprint=fingerprint)
        self._ticket = Ticket(wish, before.arrived, before.number)
        self._again = True

    def news(self) -> WaitNews:
        return self._fleet.news(self._ticket)

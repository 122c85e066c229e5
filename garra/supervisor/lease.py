"""One request's hold on a running engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from garra.spec import ORDERLY
from garra.supervisor.machine import Served
from garra.supervisor.queue import Ticket
from garra.supervisor.runner import Runner
from garra.traffic import Outcome, Usage

_DEATH_NEWS_S = 2.0  # a broken connection is seen before the process's end is


class RunnerLease:
    """The `Lease` port; what the request reports is read when it ends."""

    __slots__ = ("_runner", "_ticket", "blamed", "outcome", "socket", "usage")

    def __init__(self, runner: Runner, socket: Path, ticket: Ticket) -> None:
        self._runner = runner
        self._ticket = ticket
        self.socket = socket
        self.outcome: Outcome | None = None
        self.usage: Usage | None = None
        self.blamed: bytes | None = None
        """Fingerprint of what was being asked when the engine died of itself."""

    def began(self) -> None:
        self._ticket.answering = True

    def ended(self, outcome: Outcome, usage: Usage | None = None) -> None:
        self.outcome, self.usage = outcome, usage
        if outcome is Outcome.COMPLETE and self._runner.machine.attempts:
            self._runner.post(Served())

    async def death(self, fingerprint: bytes) -> str:
        self.outcome = Outcome.DIED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_NEWS_S):
                await self._runner.gone.wait()
        machine = self._runner.machine
        if machine.cause not in ORDERLY:
            self.blamed = fingerprint
        return machine.detail or "it closed the connection"

"""All engines: who may talk to which, and which one is in memory.

One engine is resident at a time. Requests wait in one queue, first come, first served: when its head wants the resident
model it is let through, when it wants another the resident one is drained and stopped first. Every decision is taken in
one synchronous function, `_settle`, which runs after everything that happens; it is the only writer of the queue and of
the lease counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from garra.errors import EngineDown, GarraError, ModelNotPresent, ShuttingDown
from garra.ports import Clock, Connections, EngineHttp, Spawner, Timer
from garra.spec import HOPELESS, Cause, EngineStatus, LaunchPlan, Phase, Profile
from garra.supervisor.machine import COOLDOWN_S, Drained, Served, Unwanted, Wanted
from garra.supervisor.runner import Runner

log = logging.getLogger(__name__)

_DEATH_NEWS_S = 2.0  # a broken connection is seen before the process's end is
_DOWN = (Phase.COLD, Phase.FAILED)


class _Ticket:
    """One wish in the queue: a lease for a request, or only that the engine be loaded (`insist`)."""

    __slots__ = ("granted", "insist", "profile", "tried")

    def __init__(self, profile: str, *, insist: bool = False) -> None:
        self.profile = profile
        self.insist = insist
        self.tried = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Lease:
    """What `lease()` yields; see ports.Lease."""

    __slots__ = ("_runner", "socket")

    def __init__(self, runner: Runner, socket: Path) -> None:
        self._runner = runner
        self.socket = socket

    def completed(self) -> None:
        if self._runner.machine.attempts:
            self._runner.post(Served())

    async def death(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_NEWS_S):
                await self._runner.gone.wait()
        return self._runner.machine.detail or "it closed the connection"


class _Hold:
    """`async with` over one lease. A class, not a generator: it stands in the way of every request."""

    __slots__ = ("_fleet", "_profile")

    def __init__(self, fleet: EngineFleet, profile: str) -> None:
        self._fleet = fleet
        self._profile = profile

    async def __aenter__(self) -> _Lease:
        return await self._fleet.enter(self._profile)

    async def __aexit__(self, *_: object) -> None:
        self._fleet.leave(self._profile)


class EngineFleet:
    """The `Fleet` port over real runners. Use as `async with`."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        drain_s: float,
        *,
        make_plan: Callable[[Profile], LaunchPlan],
        locate: Callable[[str], Path | None],
        spawner: Spawner,
        http: EngineHttp,
        connections: Connections,
        clock: Clock,
    ) -> None:
        self._profiles = profiles
        self._locate = locate
        self._clock = clock
        self._queue: deque[_Ticket] = deque()
        self._held: Counter[str] = Counter()
        self._idle: dict[str, Timer] = {}
        self._mortal = [name for name, profile in profiles.items() if profile.idle_ttl_s > 0]
        self._closing = False
        self._settling = False
        self._unsettled = False
        self._all_down = asyncio.Event()
        self._runners = {
            name: Runner(
                profile,
                drain_s,
                make_plan=make_plan,
                spawner=spawner,
                http=http,
                connections=connections,
                clock=clock,
                on_change=self._settle,
            )
            for name, profile in profiles.items()
        }
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> EngineFleet:
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(r.run(), name=f"runner {name}") for name, r in self._runners.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for timer in self._idle.values():
            timer.cancel()

    # -- the port

    def lease(self, profile: str) -> _Hold:
        return _Hold(self, profile)

    def load(self, profile: str) -> asyncio.Future[None]:
        self._admit(profile)
        ticket = _Ticket(profile, insist=True)
        ticket.granted.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody need await it
        self._queue.append(ticket)
        self._settle()
        return ticket.granted

    def unload(self, profile: str) -> None:
        for ticket in self._queue:
            if ticket.profile == profile and ticket.insist and not ticket.granted.done():
                ticket.granted.set_exception(EngineDown(f"{profile} was unloaded while it loaded"))
        self._runners[profile].post(Unwanted(Cause.REQUESTED))
        self._settle()

    def profiles(self) -> Sequence[Profile]:
        return tuple(self._profiles.values())

    def present(self, profile: str) -> bool:
        return self._locate(self._profiles[profile].model) is not None

    def status(self, profile: str) -> EngineStatus:
        waiting = sum(1 for ticket in self._queue if ticket.profile == profile and not ticket.insist)
        return self._runners[profile].status(leases=self._held[profile], waiting=waiting)

    async def close(self) -> None:
        """Refuse newcomers, let running answers end (as long as the drain allows), stop every engine."""
        self._closing = True
        for ticket in self._queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(ShuttingDown("garra is shutting down", retry_after_s=5))
        self._queue.clear()
        for runner in self._runners.values():
            runner.post(Unwanted(Cause.REQUESTED))
        self._settle()
        await self._all_down.wait()

    # -- decisions

    def _admit(self, profile: str) -> Runner:
        if self._closing:
            raise ShuttingDown("garra is shutting down", retry_after_s=5)
        runner = self._runners[profile]
        if runner.phase in _DOWN and not self.present(profile):
            raise ModelNotPresent(f"the model of {profile} is not on this machine", fix=f"garra pull {profile}")
        return runner

    async def enter(self, profile: str) -> _Lease:
        """Wait for a lease; whoever got one must `leave` once."""
        runner = self._admit(profile)
        while True:
            if self._queue or runner.phase is not Phase.READY:
                await self._wait_in_queue(profile)
            else:
                self._grant(profile)
            if runner.process is not None:
                return _Lease(runner, runner.process.socket)
            self.leave(profile)  # it died in the breath between the grant and now: wait for the next one

    def leave(self, profile: str) -> None:
        """The end of a lease, however it came. Never awaits."""
        self._held[profile] -= 1
        if not self._held[profile] or self._queue:
            self._settle()

    async def _wait_in_queue(self, profile: str) -> None:
        ticket = _Ticket(profile)
        self._queue.append(ticket)
        self._settle()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if not ticket.granted.cancelled() and ticket.granted.done() and ticket.granted.exception() is None:
                self.leave(profile)  # granted in the same breath in which its client left
            else:
                ticket.granted.cancel()
                with contextlib.suppress(ValueError):
                    self._queue.remove(ticket)
                self._settle()
            raise

    def _grant(self, profile: str) -> None:
        self._held[profile] += 1
        if profile in self._idle:
            self._idle.pop(profile).cancel()

    def _settle(self) -> None:
        """Decide all that can be decided now. Re-entered when it changes a runner's phase: then it goes round again."""
        self._unsettled = True
        if self._settling:
            return
        self._settling = True
        try:
            while self._unsettled:
                self._unsettled = False
                self._serve_queue()
                self._finish_drains()
                self._watch_idle()
        finally:
            self._settling = False
        if self._closing and all(runner.phase in _DOWN for runner in self._runners.values()):
            self._all_down.set()

    def _serve_queue(self) -> None:
        """1. A ready engine takes the head. 2. A broken one refuses it. 3. A cold one is loaded once its place is free.
        4. Anything else: the head waits, and so do those behind it."""
        while self._queue:
            ticket = self._queue[0]
            runner = self._runners[ticket.profile]
            if ticket.granted.done():
                pass
            elif runner.phase is Phase.READY:
                if not ticket.insist:
                    self._grant(ticket.profile)
                ticket.granted.set_result(None)
            elif runner.phase is Phase.FAILED and (ticket.tried or not ticket.insist):
                ticket.granted.set_exception(_refusal(runner))
            else:
                self._bring_up(ticket, runner)
                return
            self._queue.popleft()

    def _bring_up(self, ticket: _Ticket, runner: Runner) -> None:
        if runner.phase in (Phase.LOADING, Phase.BACKOFF) and not (ticket.insist and not ticket.tried):
            return
        if runner.phase in (*_DOWN, Phase.BACKOFF):
            others = [other for other in self._runners.values() if other is not runner and other.phase not in _DOWN]
            for other in others:
                if other.phase in (Phase.READY, Phase.BACKOFF) and not self._held[other.profile.name]:
                    other.post(Unwanted(Cause.EVICTED))
            if any(other.phase not in _DOWN for other in others):
                return
        ticket.tried = True
        runner.post(Wanted(insist=ticket.insist))

    def _finish_drains(self) -> None:
        for name, runner in self._runners.items():
            if runner.phase is Phase.DRAINING and not self._held[name]:
                runner.post(Drained())

    def _watch_idle(self) -> None:
        """An idle clock runs for every ready engine nobody holds, if its profile wants one."""
        for name in self._mortal:
            runner = self._runners[name]
            idle = runner.phase is Phase.READY and not self._held[name]
            if idle and name not in self._idle:
                self._idle[name] = self._clock.call_later(runner.profile.idle_ttl_s, partial(self._unload_idle, runner))
            elif not idle and name in self._idle:
                self._idle.pop(name).cancel()

    def _unload_idle(self, runner: Runner) -> None:
        self._idle.pop(runner.profile.name, None)
        if runner.phase is Phase.READY and not self._held[runner.profile.name]:
            runner.post(Unwanted(Cause.IDLE))


def _refusal(runner: Runner) -> GarraError:
    """Why a request cannot be served by this engine, as its client is told."""
    m, name = runner.machine, runner.profile.name
    fix = f"garra logs {name}; then: garra up {name}"
    if m.cause in HOPELESS:
        return EngineDown(f"{name} cannot be loaded ({m.cause}): {m.detail}", fix=fix)
    return EngineDown(f"{name} is down ({m.cause}): {m.detail}", fix=fix, retry_after_s=int(COOLDOWN_S))

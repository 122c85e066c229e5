"""What the scheduler and the engines need done beside: slow things, each of which ends by telling what came of it.

One task per chore and profile. Nothing here decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from garra.bill import Claim, Need
from garra.errors import GarraError
from garra.ports import Clock, Connections, EngineHttp, Memory, Plans
from garra.spec import Cause, Phase, Profile
from garra.supervisor import machine as life
from garra.supervisor.happenings import Budgeted, Event, MemoryBack, SlotsSeen, Surveyed
from garra.supervisor.model import Model
from garra.supervisor.runner import Runner
from garra.supervisor.stall import StallWatch

log = logging.getLogger(__name__)

_SLOT_LOOKS_S = (0.05, 0.3, 1.1)
"""A stream's slot is free at once, others after the engine's next look at its clients, which comes once a second; an
engine without our patch looks only when nothing else happens for a second, so the last interval is longer."""
_MEMORY_LOOK_S = 0.05
_MEMORY_LIMIT_S = 3.0
_WATCH_EVERY_S = 1.0
_BUDGET_EVERY_S = 3.0
_BUDGET_STEP_MIB = 64  # what comes and goes all the time changes no decision


class Chores:
    """Runs chores; `close` ends them all."""

    def __init__(
        self,
        post: Callable[[Event], None],
        *,
        http: EngineHttp,
        connections: Connections,
        memory: Memory,
        plans: Plans,
        clock: Clock,
    ) -> None:
        self._plans = plans
        self._post = post
        self._http = http
        self._connections = connections
        self._memory = memory
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked_back: dict[str, Callable[[], bool]] = {}
        self.watches: dict[str, StallWatch] = {}
        """The evidence about every engine that is READY."""

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- slots whose client left

    def watch_slots(self, runner: Runner, model: Model) -> None:
        if f"slots {model.name}" not in self._tasks:
            self._start(f"slots {model.name}", self._watch_slots(runner, model))

    async def _watch_slots(self, runner: Runner, model: Model) -> None:
        looks = 0
        while model.lingering and runner.process is not None:
            await self._sleep(_SLOT_LOOKS_S[min(looks, len(_SLOT_LOOKS_S) - 1)])
            looks += 1
            before, process = model.n_answering, runner.process
            slots = await self._http.slots(process.socket) if process is not None else None
            if slots is not None:
                n_busy, answering = sum(slot.busy for slot in slots), min(before, model.n_answering)
                self._post(SlotsSeen(model.name, n_busy, answering, self._clock.now()))

    # -- memory

    def about_to_stop(self, runner: Runner) -> None:
        """Remember what its end should give back."""
        if runner.process is not None:
            self._asked_back[runner.profile.name] = self._memory.asked_back(runner.process.pid)

    def reclaim(self, name: str) -> None:
        self._start(f"memory {name}", self._reclaim(name))

    async def _reclaim(self, name: str) -> None:
        is_back = self._asked_back.pop(name, None)
        deadline = self._clock.now() + _MEMORY_LIMIT_S
        while is_back is not None and not is_back():
            if self._clock.now() >= deadline:
                told = self._memory.holders()
                log.warning("%s: its memory is not back after %g s; going on. %s", name, _MEMORY_LIMIT_S, told)
                break
            await self._sleep(_MEMORY_LOOK_S)
        self._post(MemoryBack(name, self._clock.now()))

    def read_ahead(self, name: str, path: Path | None) -> None:
        if path is not None:  # else the load itself will say so
            log.info("%s: reading ahead", name)
            self._start(f"read ahead {name}", self._memory.read_ahead(path))

    # -- plans

    def survey(self, profile: Profile) -> None:
        """Find out what a profile takes."""
        self._start(f"survey {profile.name}", self._survey(profile))

    async def _survey(self, profile: Profile) -> None:
        need = Need()  # should the planner fail by a bug, nobody waits for ever: the load will fail as well, and say so
        try:
            need = await self._plans.need(profile)
        finally:
            self._post(Surveyed(profile.name, need, self._clock.now()))

    def learn(self, runner: Runner) -> None:
        """Write down what a READY engine really took."""
        if runner.process is not None and runner.plan is not None:
            self._start(f"learn {runner.profile.name}", self._plans.learn(runner.plan, runner.process.pid))

    def watch_budget(self, known: Callable[[], Claim], pids: Callable[[], list[int]]) -> None:
        """Look, as long as garra runs, whether other programs took memory or gave it back."""
        self._start("budget", self._watch_budget(known, pids))

    async def _watch_budget(self, known: Callable[[], Claim], pids: Callable[[], list[int]]) -> None:
        while True:
            budget = await self._plans.budget(pids())
            if any(abs(mib - known().get(device, 0)) >= _BUDGET_STEP_MIB for device, mib in budget.items()):
                self._post(Budgeted(budget, self._clock.now()))
            await self._sleep(_BUDGET_EVERY_S)

    # -- is it alive?

    def examine(self, runner: Runner, n_failed: int) -> None:
        self._start(f"examine {runner.profile.name}", self._examine(runner, n_failed))

    async def _examine(self, runner: Runner, n_failed: int) -> None:
        process = runner.process
        if process is None:
            return
        log.warning("%s: %d answers in a row failed, asking for one token", runner.profile.name, n_failed)
        try:
            await self._http.warm_up(process.socket)
        except GarraError as error:
            if runner.process is process:
                runner.post(life.Broken(Cause.CRASH, f"{n_failed} answers in a row failed; {error.what}"))

    def keep_watch(self, runner: Runner, model: Model) -> None:
        """Look after an engine for as long as it is READY."""
        profile = runner.profile
        watch = StallWatch(self._clock.now(), profile.batch, runner.prompt_s_per_token)
        self.watches[profile.name] = watch
        self._start(f"watch {profile.name}", self._keep_watch(runner, model, watch))

    async def _keep_watch(self, runner: Runner, model: Model, watch: StallWatch) -> None:
        process = runner.process
        while process is not None and runner.process is process and runner.phase is Phase.READY:
            await self._sleep(_WATCH_EVERY_S)
            now, stall_s = self._clock.now(), model.profile.stall_s
            if not model.busy:
                watch.rest(now)
            elif watch.should_ask(now, self._connections.activity(process.socket), stall_s):
                slots = await self._http.slots(process.socket)
                now = self._clock.now()
                if model.busy and watch.stuck(now, slots, stall_s) and runner.process is process:
                    said = "and does not answer" if slots is None else "its slots do not move"
                    runner.post(life.Broken(Cause.STALLED, f"no token for {watch.quiet_s(now):.0f} s, {said}"))

    # -- inside

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """One chore of a name at a time: the newer one replaces the older."""
        if (old := self._tasks.get(name)) is not None:
            old.cancel()
        task = asyncio.get_running_loop().create_task(self._wall(name, work), name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    async def _wall(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("a bug in garra, while it did: %s", name)

    async def _sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        timer = self._clock.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

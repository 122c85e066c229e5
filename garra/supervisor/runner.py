"""Drives one engine: performs what `machine.step` asks for and posts what comes of it.

The machine changes synchronously in `post`, so its phase is always the truth; effects are performed in order by `run`.
The runner is a wall: whatever happens to its engine is an event, and a bug in here fails this engine alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from garra.bill import Place, spot
from garra.dialogue import UNKNOWN_TRAITS
from garra.errors import GarraError
from garra.ports import Clock, Connections, EngineHttp, EngineProcess, Plans, Prompts, Spawner
from garra.ports import Timer as TimerHandle
from garra.snapshot import EngineStatus
from garra.spec import MIB, Cause, EngineExit, EngineProps, LaunchPlan, Phase, Profile
from garra.supervisor import machine as life
from garra.supervisor.machine import Machine, step
from garra.supervisor.shield import to_the_end

log = logging.getLogger(__name__)

_PROBE_FIRST_S = 0.02
_PROBE_SOON_S = 0.04
_SOON_S = 2.0
"""While small models load, a client waits: a late look would be most of what it waits for."""
_PROBE_LONGEST_S = 0.25
_PROGRESS_EVERY_S = 1.0
_BACKOFF_JITTER = 0.25


class Runner:
    """One profile's engine. `on_change` is called, synchronously, after every change of phase."""

    def __init__(
        self,
        profile: Profile,
        drain_s: float,
        *,
        plans: Plans,
        spawner: Spawner,
        http: EngineHttp,
        connections: Connections,
        prompts: Prompts,
        clock: Clock,
        on_change: Callable[[], None],
        on_plan: Callable[[LaunchPlan], None] = lambda plan: None,
    ) -> None:
        self.profile = profile
        self.place = Place()
        """Where the scheduler put the engine, and what it may take there."""
        self._plans = plans
        self._on_plan = on_plan
        self._spawner = spawner
        self._http = http
        self._connections = connections
        self._prompts = prompts
        self._clock = clock
        self._on_change = on_change
        self._machine = Machine(limits=_limits(profile, drain_s))
        self._since = clock.now()
        self._effects: asyncio.Queue[life.Effect] = asyncio.Queue()
        self._timers: dict[life.Timer, TimerHandle] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._process: EngineProcess | None = None
        self._plan: LaunchPlan | None = None
        self._props: EngineProps | None = None
        self.traits = UNKNOWN_TRAITS
        """What the model's template can do; as the last engine that was READY said."""
        self._gone = asyncio.Event()
        self._gone.set()
        self._restarts = 0
        self.prompt_s_per_token = 0.0
        """Seconds of prefill per token, by the warm-up: slower than any real batch."""

    @property
    def phase(self) -> Phase:
        return self._machine.phase

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def props(self) -> EngineProps | None:
        """What the READY engine said it is."""
        return self._props

    @property
    def plan(self) -> LaunchPlan | None:
        """What the engine was started with."""
        return self._plan

    @property
    def process(self) -> EngineProcess | None:
        """The engine's process, while there is one."""
        return self._process

    @property
    def address(self) -> Path | None:
        """The socket of the engine while it is READY."""
        return self._process.socket if self._process is not None and self.phase is Phase.READY else None

    @property
    def gone(self) -> asyncio.Event:
        """Set while there is no process."""
        return self._gone

    def reprofile(self, profile: Profile, drain_s: float) -> None:
        """The next start uses this profile; its waits count from now on."""
        self.profile = profile
        self._machine = replace(self._machine, limits=_limits(profile, drain_s))

    def post(self, event: life.Event) -> None:
        """Tell the machine what happened; what it asks for is done by `run`, in order."""
        before = self._machine
        try:
            self._machine, effects = step(before, event)
        except life.IllegalEvent:
            self._fail_by_bug()
            return
        for effect in effects:
            self._effects.put_nowait(effect)
        if self._machine.phase is not before.phase:
            self._tell(before, self._machine)
            self._since = self._clock.now()
            self._on_change()

    async def run(self) -> None:
        """Perform effects until cancelled; the engine does not outlive this call."""
        while True:
            try:
                await self._perform_all()
            except Exception:  # noqa: BLE001 - the wall: a bug here must not stop other engines
                self._fail_by_bug()

    async def _perform_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            try:
                while True:
                    await self._perform(await self._effects.get(), tasks)
            finally:
                for timer in self._timers.values():
                    timer.cancel()
                if self._process is not None:
                    self._process.send_signal(signal.SIGKILL)

    async def _perform(self, effect: life.Effect, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case life.Spawn():
                await self._spawn(tasks)
            case life.Probe() if self._process is not None:
                self._ask(tasks, self._probe(self._process), "probe")
            case life.Verify() if self._process is not None:
                self._ask(tasks, self._verify(self._process), "verify")
            case life.Keep() if self._process is not None and self._plan is not None:
                await self._prompts.keep(self._plan, self._process.socket)
            case life.Disconnect():
                for task in self._asking:
                    task.cancel()
                if self._process is not None:
                    self._connections.close(self._process.socket)
            case life.Signal(signum):
                if self._process is not None:
                    self._process.send_signal(signum)
            case life.Arm(timer, delay_s, epoch):
                self._arm(timer, delay_s, epoch)
            case _:
                pass  # a probe of a process that never started: its end is already posted

    async def _spawn(self, tasks: asyncio.TaskGroup) -> None:
        self._props = None
        try:
            self._plan = await self._plans.plan(self.profile, self.place)
            for note in self._plan.notes:
                log.warning("%s", note)
            self._on_plan(self._plan)
            self._process = await self._spawner.spawn(self._plan)
        except GarraError as error:
            cause = Cause.BAD_MODEL if error.exit_code == 4 else Cause.START_FAILED
            self.post(life.Exited(EngineExit(code=None, signal=None, cause=cause, detail=error.what)))
            return
        self._gone.clear()
        tasks.create_task(self._watch(self._process), name=f"watch {self.profile.name}")

    def _ask(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> None:
        task = tasks.create_task(work, name=f"{name} {self.profile.name}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _arm(self, timer: life.Timer, delay_s: float, epoch: int) -> None:
        if timer in self._timers:
            self._timers[timer].cancel()
        if timer is life.Timer.BACKOFF:
            delay_s *= 1 + random.random() * _BACKOFF_JITTER
        self._timers[timer] = self._clock.call_later(delay_s, lambda: self.post(life.Elapsed(timer, epoch)))

    async def _watch(self, process: EngineProcess) -> None:
        try:
            gone = await to_the_end(process.wait())
            lighter = await self._lowered(gone)
        finally:
            self._process = None
            self._gone.set()
        self.post(life.Exited(gone, lighter))  # in the same breath: no phase may stand for a process that is not there

    async def _lowered(self, gone: EngineExit) -> bool:
        """Whether the next start asks for less, because memory ran out."""
        if gone.cause is not Cause.OOM or self._plan is None or self.phase not in (Phase.LOADING, Phase.READY):
            return False
        return await self._plans.lower(self._plan, self.profile, str(gone))

    async def _probe(self, process: EngineProcess) -> None:
        delay_s, seen, looked = _PROBE_FIRST_S, process.progress(), self._clock.now()
        soon = looked + _SOON_S
        while not await self._http.healthy(process.socket):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, _PROBE_LONGEST_S if self._clock.now() > soon else _PROBE_SOON_S)
            if self._clock.now() - looked >= _PROGRESS_EVERY_S:
                looked, now = self._clock.now(), process.progress()
                if now > seen:
                    self.post(life.Progressed())
                seen = max(seen, now)
        self.post(life.Healthy())

    async def _verify(self, process: EngineProcess) -> None:
        plan = self._plan
        assert plan is not None
        try:
            props = await self._http.props(process.socket)
            if props.slots != plan.profile.slots:
                self.post(life.Rejected(f"planned {plan.profile.slots} slots, the engine has {props.slots}"))
                return
            if props.model_path != str(plan.model_path):
                self.post(life.Rejected(f"planned {plan.model_path}, the engine has {props.model_path}"))
                return
            self.prompt_s_per_token = await self._http.warm_up(process.socket, plan.profile.kind)
            await self._prompts.bring_back(plan, process.socket, props.slots)
        except GarraError as error:
            self.post(life.Rejected(error.what))
            return
        self._props, self.traits = props, props.traits
        self.post(life.Verified())

    def _fail_by_bug(self) -> None:
        log.error("%s failed by a bug in garra:\n%s", self.profile.name, traceback.format_exc())
        detail = "a bug in garra: see its log"
        self._machine = replace(self._machine, phase=Phase.FAILED, cause=Cause.START_FAILED, detail=detail)
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
        self._on_change()

    def _tell(self, before: Machine, after: Machine) -> None:
        spent_s = self._clock.now() - self._since
        name = self.profile.name
        match after.phase:
            case Phase.LOADING:
                self._restarts += before.phase is Phase.BACKOFF
                log.info("%s: loading", name)
            case Phase.READY:
                log.info("%s: ready after %.1f s", name, spent_s)
                for warning in self.warnings():
                    log.warning("%s: %s", name, warning)
            case Phase.BACKOFF | Phase.FAILED:
                log.error("%s: %s (%s): %s", name, after.phase, after.cause, after.detail)
            case _:
                log.info("%s: %s%s", name, after.phase, f" ({after.cause})" if after.cause else "")

    def warnings(self) -> tuple[str, ...]:
        """Where the running engine differs from what the profile asked for."""
        plan, props = self._plan, self._props
        if plan is None or props is None:
            return ()
        notes = list(plan.notes)
        if props.slot_context < plan.profile.context:
            notes.append(
                f"context {props.slot_context} per slot instead of {plan.profile.context}: the model has no more"
            )
        return tuple(notes)

    def load_fraction(self) -> float | None:
        """How much of the file is in memory while it loads, 0 to 0.99."""
        process, plan = self._process, self._plan
        rss = process.rss_bytes() if process is not None else None
        if self.phase is not Phase.LOADING or rss is None or plan is None or not plan.model_path.exists():
            return None
        return min(0.99, rss / max(1, plan.model_path.stat().st_size))

    def _planned_mib(self) -> dict[str, int]:
        plan = self._plan
        if plan is None or plan.bill is None or self._process is None:
            return {}
        return dict(plan.bill.need.on(spot(plan.gpu)))

    def status(self) -> EngineStatus:
        """What there is to know of the engine itself; the fleet adds who uses it."""
        m, process, props = self._machine, self._process, self._props
        rss = process.rss_bytes() if process is not None else None
        return EngineStatus(
            profile=self.profile.name,
            phase=m.phase,
            cause=m.cause,
            detail=m.detail,
            since_s=self._clock.now() - self._since,
            load_fraction=self.load_fraction(),
            pid=process.pid if process is not None else None,
            slots=props.slots if props is not None else self.profile.slots,
            slot_context=props.slot_context if props is not None else self.profile.context,
            restarts=self._restarts,
            rss_mib=rss // MIB if rss is not None else None,
            engine=self._plan.engine if self._plan is not None and process is not None else "",
            planned_mib=self._planned_mib(),
            warnings=self.warnings(),
        )


def _limits(profile: Profile, drain_s: float) -> life.Limits:
    return life.Limits(load_s=profile.load_timeout_s, drain_s=drain_s, grace_s=profile.stop_grace_s)

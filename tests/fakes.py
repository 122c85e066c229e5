"""Ports that do what a test says, in the order it says it. Real processes and real HTTP are tested in tests/engine."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from garra import config
from garra.bill import HOST, Claim, Need, Place
from garra.dialogue import Kind
from garra.errors import EngineDown
from garra.prompts.words import Moved
from garra.snapshot import SlotState
from garra.spec import Cause, EngineExit, EngineProps, LaunchPlan, Profile
from garra.tally import PromptTally
from garra.traffic import Usage


@dataclass
class FakeTimer:
    due: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[FakeTimer] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.time + delay_s, call)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; timers fire in order."""
        self.time += seconds
        for timer in sorted(self.timers, key=lambda timer: timer.due):
            if timer.due <= self.time and not timer.cancelled:
                timer.cancelled = True
                timer.call()


class FakeProcess:
    """Ends when told to, or at a signal."""

    def __init__(self, plan: LaunchPlan, pid: int, *, ignores_term: bool) -> None:
        self.plan = plan
        self.pid = pid
        self.socket = Path(f"/fake/{plan.profile.name}-{pid}.sock")
        self.signals: list[int] = []
        self._ignores_term = ignores_term
        self._end: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()

    def send_signal(self, signum: int) -> None:
        self.signals.append(signum)
        if signum == signal.SIGKILL or not self._ignores_term:
            self.end(signum=signum)

    def end(self, *, code: int | None = None, signum: int | None = None, cause: Cause = Cause.CRASH) -> None:
        if not self._end.done():
            self._end.set_result(EngineExit(code=code, signal=signum, cause=cause, detail="last words"))

    async def wait(self) -> EngineExit:
        return await self._end

    def progress(self) -> int:
        return 0

    def rss_bytes(self) -> int | None:
        return None


@dataclass
class FakeEngines:
    """Spawner, engine HTTP, connections and memory in one; engines are ready at once unless a test says otherwise."""

    ignores_term: bool = False
    refuses: bool = False
    sick: bool = False
    slots_said: tuple[SlotState, ...] | None = ()
    pieces: int = 0
    memory_is_back: bool = True
    ready: dict[str, bool] = field(default_factory=dict)
    spawned: list[FakeProcess] = field(default_factory=list)
    closed: list[Path] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    _pids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    async def spawn(self, plan: LaunchPlan) -> FakeProcess:
        if self.refuses:
            raise EngineDown("cannot start it")
        process = FakeProcess(plan, next(self._pids), ignores_term=self.ignores_term)
        self.spawned.append(process)
        self.log.append(f"spawn {plan.profile.name}")
        return process

    def close(self, socket: Path) -> None:
        self.closed.append(socket)
        self.log.append(f"close {socket.stem.rpartition('-')[0]}")

    async def healthy(self, socket: Path) -> bool:
        return self.ready.get(socket.stem.rpartition("-")[0], True)

    async def props(self, socket: Path) -> EngineProps:
        plan = next(process.plan for process in self.spawned if process.socket == socket)
        return EngineProps(plan.profile.slots, plan.profile.context, str(plan.model_path), "b1")

    async def warm_up(self, socket: Path, kind: Kind = "chat") -> float:
        if self.sick:
            raise EngineDown("no token")
        return 0.001

    async def slots(self, socket: Path) -> tuple[SlotState, ...] | None:
        return self.slots_said

    async def save_slot(self, socket: Path, slot: int, name: str) -> Moved:
        raise EngineDown("it saves nothing")

    async def restore_slot(self, socket: Path, slot: int, name: str) -> Moved:
        raise EngineDown("it restores nothing")

    def activity(self, socket: Path) -> int:
        return self.pieces

    def asked_back(self, pid: int) -> Callable[[], bool]:
        return lambda: self.memory_is_back

    def holders(self) -> str:
        return "somebody holds it"

    async def read_ahead(self, path: Path) -> None:
        self.log.append(f"read ahead {path.stem}")

    def alive(self) -> list[str]:
        return [process.plan.profile.name for process in self.spawned if not process._end.done()]


class NoPrompts:
    """Nothing is kept."""

    async def keep(self, plan: LaunchPlan, socket: Path) -> None:
        pass

    async def bring_back(self, plan: LaunchPlan, socket: Path, slots: int) -> None:
        pass

    def note(self, profile: str, chain: tuple[int, ...], usage: Usage) -> None:
        pass

    def tally(self, profile: str) -> PromptTally:
        return PromptTally()

    def said(self, profile: str) -> str:
        return ""


def profiles(*names: str, **changes: object) -> dict[str, Profile]:
    """Profiles a, b, c... like `demo`."""
    tables = {name: {"model": f"file:/models/{name}.gguf", **changes} for name in names}
    loaded = config.load({"profiles": tables}).profiles
    return {name: loaded[name] for name in names}


def plan_for(profile: Profile) -> LaunchPlan:
    return LaunchPlan(profile, Path(f"/models/{profile.name}.gguf"), threads=2, gpu_layers=0)


class FakePlans:
    """Every profile takes what it says, or the whole budget; a test may take some of that away."""

    def __init__(self, budget_mib: int) -> None:
        self.budget_mib = budget_mib
        self.lighter = False
        """Whether there is a smaller plan for one that ran out of memory."""
        self.lowered: list[str] = []
        self.learned: list[int] = []
        self.speeds: list[float] = []

    async def need(self, profile: Profile) -> Need:
        return Need(0, profile.memory_mib or self.budget_mib)

    async def plan(self, profile: Profile, place: Place) -> LaunchPlan:
        return plan_for(profile)

    async def lower(self, plan: LaunchPlan, wished: Profile, why: str) -> bool:
        self.lowered.append(why)
        return self.lighter

    async def learn(self, plan: LaunchPlan, pid: int) -> None:
        self.learned.append(pid)

    def served(self, plan: LaunchPlan, decode_tok_s: float) -> None:
        self.speeds.append(decode_tok_s)

    async def budget(self, pids: Sequence[int]) -> Claim:
        return {HOST: self.budget_mib}


async def settle() -> None:
    """Let every task run until nothing moves any more."""
    for _ in range(50):
        await asyncio.sleep(0)

"""All engines: who may talk to which, and which are in memory.

Everything that happens goes through `post`, one event after the other; `schedule.decide` says what is to be done and
this file does it. It is the only writer of the scheduler's state. Nothing here decides and nothing in `post` awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from garra.bill import spot
from garra.errors import GarraError, ModelNotPresent, Taken
from garra.events import Fact
from garra.ports import Clock, Connections, EngineHttp, Memory, Plans, Prompts, Spawner, Timer
from garra.snapshot import EngineStatus
from garra.spec import Cause, LaunchPlan, Phase, Policy, Profile
from garra.supervisor import happenings as do
from garra.supervisor import machine as life
from garra.supervisor.chores import Chores
from garra.supervisor.drafting import Drafters
from garra.supervisor.lease import FleetHold, RunnerLease
from garra.supervisor.model import DOWN, LoadWish
from garra.supervisor.queue import Ticket
from garra.supervisor.records import State
from garra.supervisor.runner import Runner
from garra.supervisor.schedule import decide, end_at_once, serve_at_once
from garra.tally import PromptTally, Tally
from garra.traffic import Outcome, WaitNews, Wish


class EngineFleet:
    """The `Fleet` port over real runners. Use as `async with`."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        policy: Policy,
        *,
        plans: Plans,
        locate: Callable[[str], Path | None],
        spawner: Spawner,
        http: EngineHttp,
        connections: Connections,
        memory: Memory,
        prompts: Prompts,
        clock: Clock,
        tell: Callable[[Fact], None] = lambda fact: None,
    ) -> None:
        self._profiles = dict(profiles)
        self._plans = plans
        self._locate = locate
        self._spawner = spawner
        self._http = http
        self._connections = connections
        self._prompts = prompts
        self._clock = clock
        self.now = clock.now
        self._tell = tell
        self._state = State(policy)
        self._drafters = Drafters(lambda profile, news: tell(Fact("drafting", profile, news)))
        self._inbox: deque[do.Event] = deque()
        self._deciding = False
        self._answers: dict[Ticket | LoadWish, asyncio.Future[None]] = {}
        self._refusals: dict[Ticket, GarraError] = {}
        """Of those who were refused before they waited."""
        self._wake: Timer | None = None
        self._all_down = asyncio.Event()
        self._runners: dict[str, Runner] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._chores = Chores(self.post, http=http, connections=connections, memory=memory, plans=plans, clock=clock)

    async def __aenter__(self) -> EngineFleet:
        self.configure(self._profiles, self._state.policy)
        self._chores.watch_budget(lambda: self._state.policy.budget, self.pids)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._chores.close()
        for task in self._loops.values():
            task.cancel()
        await asyncio.gather(*self._loops.values(), return_exceptions=True)
        if self._wake is not None:
            self._wake.cancel()

    # -- the port

    def lease(self, wish: Wish) -> FleetHold:
        return FleetHold(self, wish)

    @property
    def suspicious(self) -> bool:
        return bool(self._state.blame)

    def load(self, profile: str) -> asyncio.Future[None]:
        self._require_file(profile)
        wish = LoadWish(profile, self.now())
        loaded = asyncio.get_running_loop().create_future()
        loaded.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody need await it
        self._answers[wish] = loaded
        self.post(do.Insisted(wish, self.now()))
        return loaded

    def unload(self, profile: str) -> None:
        self.post(do.Dismissed(profile, self.now()))

    def pin(self, profile: str, pinned: bool) -> None:
        self.post(do.Pinned(profile, pinned, self.now()))
        self._tell(Fact("pinned", profile, "on" if pinned else "off"))

    def reserve(self, on: bool) -> None:
        if on and self._state.reserved:
            raise Taken("the machine is reserved already", fix="wait until the other measurement is over")
        self._tell(Fact("reserved", detail="on" if on else "off"))
        self.post(do.Reserved(on, self.now()))

    def profiles(self) -> Sequence[Profile]:
        return tuple(self._profiles.values())

    def present(self, profile: str) -> bool:
        return self._locate(self._profiles[profile].model) is not None

    def address(self, profile: str) -> Path | None:
        return self._runners[profile].address

    def tally(self, profile: str) -> Tally:
        return self._state.models[profile].tally

    def prompts(self, profile: str) -> PromptTally:
        return self._prompts.tally(profile)

    def status(self, profile: str) -> EngineStatus:
        model = self._state.models[profile]
        shown = model.onto(self._runners[profile].status(), self.now())
        return replace(shown, drafting=self._drafters.said(profile), prompts=self._prompts.said(profile))

    def configure(self, profiles: Mapping[str, Profile], policy: Policy) -> None:
        """These are the profiles from now on; engines whose profile did not change are not touched."""
        self._drafters.configure(profiles)
        self._profiles = dict(profiles)
        for name, profile in profiles.items():
            if name not in self._runners:
                self._employ(profile)
        self.post(do.Configured(dict(profiles), policy, self.now()))

    def renew(self) -> None:
        """There is another engine build: whatever is loaded starts again with it, once its answers have ended."""
        self.post(do.Renewed(self.now()))

    def pids(self) -> list[int]:
        """The engines' processes."""
        return [one.process.pid for one in self._runners.values() if one.process is not None and one.process.pid]

    async def close(self) -> None:
        """Refuse newcomers, let running answers end (as long as the drain allows), stop every engine."""
        self.post(do.Closing(self.now()))
        await self._all_down.wait()

    # -- for holds

    def enter_at_once(self, ticket: Ticket) -> RunnerLease | None:
        """A lease, if one is to be had this moment."""
        runner = self._runners[ticket.wish.profile]
        socket = runner.address
        if socket is None or self._deciding:
            return None
        if not serve_at_once(self._state, ticket, ticket.arrived):  # made a moment ago
            return None
        return RunnerLease(runner, socket, ticket, self._drafters.choose(runner.profile.name))

    async def enter(self, ticket: Ticket, *, again: bool) -> RunnerLease:
        """Wait for a lease; whoever got one must `leave` once."""
        runner = self._require_file(ticket.wish.profile)
        self.post(do.Arrived(ticket, self.now(), again))
        while True:
            if ticket.granted is None:
                await self._wait_for(ticket)
            if (socket := runner.address) is not None:
                model = self._state.models[ticket.wish.profile]
                waited = model.waited(ticket)
                return RunnerLease(runner, socket, ticket, self._drafters.choose(model.name), waited)
            self.post(do.Returned(ticket, self.now()))  # it died in the breath between the grant and now
            await asyncio.sleep(0)  # the news of its death must get its turn

    def leave(self, ticket: Ticket, lease: RunnerLease) -> None:
        """The end of a lease, however it came. Never awaits."""
        outcome, usage = lease.outcome or Outcome.LEFT, lease.usage
        now, name = self.now(), ticket.wish.profile
        lease.teach(self._state.models[name].tally, self._chores.watches.get(name), now)
        if usage is not None:
            self._drafters.learn(name, usage, drafted=lease.drafts)
            self._prompts.note(name, ticket.wish.chain, usage)
        event = do.Ended(ticket, outcome, now, usage.tokens if usage is not None else None, lease.blamed)
        if self._deciding or not end_at_once(self._state, event):
            self.post(event)

    def news(self, ticket: Ticket) -> WaitNews:
        if (model := self._state.models.get(ticket.wish.profile)) is None or ticket.granted is not None:
            return WaitNews(0, Phase.READY)
        return WaitNews(model.queue.position(ticket), model.phase, self._runners[model.name].load_fraction())

    async def _wait_for(self, ticket: Ticket) -> None:
        """Until it is granted or refused; most are granted before they have to wait."""
        if (refusal := self._refusals.pop(ticket, None)) is not None:
            raise refusal
        granted = self._answers[ticket] = asyncio.get_running_loop().create_future()
        try:
            await granted
        except asyncio.CancelledError:
            self._answers.pop(ticket, None)
            if ticket.granted is not None:  # in the same breath in which its client left: the engine never saw it
                self.post(do.Ended(ticket, Outcome.LEFT, self.now(), asked=False))
            elif granted.cancelled():
                self.post(do.Left(ticket, self.now()))
            raise

    def _require_file(self, profile: str) -> Runner:
        """The profile's runner. Raises ModelNotPresent when the engine would have to be started and cannot be."""
        runner = self._runners[profile]
        if runner.phase in DOWN and profile in self._profiles and not self.present(profile):
            raise ModelNotPresent(f"the model of {profile} is not on this machine", fix=f"garra pull {profile}")
        return runner

    # -- events and effects

    def post(self, event: do.Event) -> None:
        """Decide and act. Entered again from within, it only takes down what happened: the outer call goes on."""
        self._inbox.append(event)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._inbox:
                for effect in decide(self._state, self._inbox.popleft()):
                    self._perform(effect)
        finally:
            self._deciding = False
        if self._state.closing and all(runner.phase in DOWN for runner in self._runners.values()):
            self._all_down.set()

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Grant(who) | do.Fulfil(who):
                if (answer := self._answers.pop(who, None)) is not None and not answer.done():
                    answer.set_result(None)
            case do.Refuse(who, error):
                if (answer := self._answers.pop(who, None)) is not None:
                    if not answer.done():
                        answer.set_exception(error)
                elif isinstance(who, Ticket):
                    self._refusals[who] = error
            case do.Survey(profile):
                self._chores.survey(self._profiles[profile])
            case do.Load(profile, place, insist):
                self._runners[profile].place = place
                self._runners[profile].post(life.Wanted(insist=insist))
            case do.Stop(profile, cause):
                self._chores.about_to_stop(self._runners[profile])
                self._runners[profile].post(life.Unwanted(cause))
                if cause is Cause.EVICTED:
                    self._tell(Fact("swap", profile, "makes room"))
            case do.Drained(profile):
                self._runners[profile].post(life.Drained())
            case do.Reclaim(profile):
                self._chores.reclaim(profile)
            case do.ReadAhead(profile):
                self._chores.read_ahead(profile, self._locate(self._runners[profile].profile.model))
            case do.WatchSlots(profile):
                self._chores.watch_slots(self._runners[profile], self._state.models[profile])
            case do.Examine(profile, n_failed):
                self._chores.examine(self._runners[profile], n_failed)
            case do.Reprofile(profile):
                self._runners[profile.name].reprofile(profile, self._state.policy.drain_s)
            case do.Forget(profile):
                self._dismiss(profile)
            case do.Wake(at):
                self._set_alarm(at)

    def _set_alarm(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if at != float("inf"):
            delay_s = max(0.0, at - self.now())
            self._wake = self._clock.call_later(delay_s, lambda: self.post(do.Ticked(self.now())))

    def _employ(self, profile: Profile) -> None:
        runner = self._runners[profile.name] = Runner(
            profile,
            self._state.policy.drain_s,
            plans=self._plans,
            spawner=self._spawner,
            http=self._http,
            connections=self._connections,
            prompts=self._prompts,
            clock=self._clock,
            on_change=partial(self._changed, profile.name),
            on_plan=partial(self._planned, profile.name),
        )
        loop = asyncio.get_running_loop()
        self._loops[profile.name] = loop.create_task(runner.run(), name=f"runner {profile.name}")

    def _dismiss(self, name: str) -> None:
        self._runners.pop(name, None)
        if (loop := self._loops.pop(name, None)) is not None:
            loop.cancel()

    def _planned(self, name: str, plan: LaunchPlan) -> None:
        """An engine is about to be started with this plan."""
        if plan.bill is not None and plan.profile.memory_mib is None:  # else it is the person's word that counts
            self.post(do.Planned(name, plan.bill.need.on(spot(plan.gpu)), self.now()))
        for note in plan.notes:
            self._tell(Fact("plan", name, note))

    def _changed(self, name: str) -> None:
        """A runner's engine is in another phase."""
        runner = self._runners[name]
        m = runner.machine
        if m.phase is Phase.READY:
            self._chores.keep_watch(runner, self._state.models[name])
            self._chores.learn(runner)
        elif m.phase is Phase.STOPPING and (speed := self._state.models[name].tally.decode_tok_s) and runner.plan:
            self._plans.served(runner.plan, speed)
        slots = runner.props.slots if runner.props is not None else 0
        self._tell(Fact("phase", name, m.phase + (f" ({m.cause}) {m.detail}".rstrip() if m.cause else "")))
        self.post(do.PhaseChanged(name, m.phase, self.now(), m.cause, m.detail, slots))

"""A world for the scheduler without clocks, tasks or sockets: engines follow the real state machine, a test says what
happens next, and every promise is checked after everything that happened."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace

from garra.bill import HOST, Claim, Need, beyond, plus
from garra.spec import Cause, EngineExit, Phase, Policy, Profile
from garra.supervisor import happenings as do
from garra.supervisor import machine as life
from garra.supervisor.model import DOWN, LoadWish, Model
from garra.supervisor.queue import Ticket
from garra.supervisor.records import State
from garra.supervisor.schedule import decide
from garra.traffic import Outcome, Wish


class Engine:
    """One profile's engine: the real machine, and a process that is there or not."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.machine = life.Machine()
        self.alive = False
        self.answers_term = True
        self.held: Claim = {}
        """What it takes, until the world says it is back."""
        self.orphans = 0
        """Slots that work on for clients who left."""
        self.timers: list[tuple[float, life.Elapsed]] = []

    def post(self, event: life.Event) -> None:
        before = self.machine
        self.machine, effects = life.step(before, event)
        for effect in effects:
            self._perform(effect)
        if self.machine.phase is not before.phase:
            m = self.machine
            slots = self.profile.slots if m.phase is Phase.READY else 0
            self.world.post(do.PhaseChanged(self.profile.name, m.phase, self.world.now, m.cause, m.detail, slots))

    def _perform(self, effect: life.Effect) -> None:
        match effect:
            case life.Spawn():
                assert not self.alive, "one live process per profile"
                model = self.world.state.models[self.profile.name]
                assert not self.held or model.held
                self.alive, self.held = True, model.held
            case life.Signal(signum) if self.alive and (signum == signal.SIGKILL or self.answers_term):
                self.end(Cause.REQUESTED)
            case life.Arm(timer, delay_s, epoch):
                self.timers.append((self.world.now + delay_s, life.Elapsed(timer, epoch)))
            case _:
                pass

    def end(self, cause: Cause = Cause.CRASH) -> None:
        """The process is gone."""
        self.alive, self.orphans = False, 0
        self.world.later(lambda: self.post(life.Exited(EngineExit(None, 9, cause, "last words"))))


class World:
    """Performs effects and keeps the books the scheduler is judged by."""

    def __init__(self, profiles: dict[str, Profile], budget: Claim, *, fifo: bool = False) -> None:
        self.now = 0.0
        self.needs: dict[str, Need] = {}
        """What profiles take that do not say so themselves."""
        self.peak: dict[str, int] = {}
        """The most that was ever held, by device."""
        self.state = State(Policy(budget, fifo=fifo))
        self.engines: dict[str, Engine] = {}
        self.answered: Counter[object] = Counter()
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []
        self.refused: list[tuple[Ticket, str]] = []
        self.granted: list[Ticket] = []
        self.returning: list[str] = []
        self.wake_at = float("inf")
        self.n_events = 0
        self.served_at: dict[str, list[int]] = {}
        """For each model, the events at which it gave leases since it became READY."""
        self._inbox: list[do.Event] = []
        self._later: list[object] = []
        self._busy = False
        self.configure(profiles, budget)

    # -- what a test may let happen

    def configure(self, profiles: dict[str, Profile], budget: Claim) -> None:
        for name, profile in profiles.items():
            if name not in self.engines:
                self.engines[name] = Engine(self, profile)
        self.post(do.Configured(dict(profiles), Policy(budget, fifo=self.state.policy.fifo), self.now))

    def need(self, profile: Profile) -> Need:
        """What a profile takes: all of the budget, unless it says otherwise."""
        return self.needs.get(profile.name) or Need(0, profile.memory_mib or self.state.policy.budget.get(HOST, 0))

    def arrive(self, wish: Wish) -> Ticket:
        ticket = Ticket(wish, self.now)
        self.waiting.append(ticket)
        self.post(do.Arrived(ticket, self.now))
        return ticket

    def reserve(self, on: bool) -> None:
        """Somebody wants the machine alone, or no longer."""
        self.post(do.Reserved(on, self.now))

    def leave(self, ticket: Ticket) -> None:
        """Its client gives up, wherever it is."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            self.answered[ticket] += 1
            self.post(do.Left(ticket, self.now))
        elif ticket in self.running:
            self.running.remove(ticket)
            engine = self.engines[ticket.wish.profile]
            engine.orphans += engine.alive and engine.machine.phase in (Phase.READY, Phase.DRAINING)
            self.post(do.Ended(ticket, Outcome.LEFT, self.now))

    def finish(self, ticket: Ticket, outcome: Outcome = Outcome.COMPLETE, fingerprint: bytes | None = None) -> None:
        self.running.remove(ticket)
        self.post(do.Ended(ticket, outcome, self.now, 100.0, fingerprint))
        if outcome is Outcome.COMPLETE and ticket.wish.profile in self.engines:
            self.engines[ticket.wish.profile].post(life.Served())
            self.settle()

    def crash(self, name: str, cause: Cause = Cause.CRASH) -> None:
        """The engine dies and takes its requests with it."""
        engine = self.engines[name]
        if engine.alive:
            engine.end(cause)
            for ticket in [t for t in self.running if t.wish.profile == name]:
                self.finish(ticket, Outcome.DIED, fingerprint=ticket.wish.fingerprint)
            self.settle()

    def ready(self, name: str) -> None:
        engine = self.engines[name]
        if engine.alive and engine.machine.phase is Phase.LOADING:
            engine.post(life.Verified())
            self.settle()

    def memory_back(self, name: str) -> None:
        if name in self.returning:
            self.returning.remove(name)
            if name in self.engines and not self.engines[name].alive:
                self.engines[name].held = {}
            self.post(do.MemoryBack(name, self.now))

    def look_at_slots(self, name: str) -> None:
        """The engine notices who left, and garra sees it."""
        engine = self.engines[name]
        engine.orphans = 0
        answering = sum(t.wish.profile == name for t in self.running)
        self.post(do.SlotsSeen(name, answering, answering, self.now))

    def insist(self, name: str) -> None:
        self.post(do.Insisted(LoadWish(name, self.now), self.now))

    def dismiss(self, name: str) -> None:
        self.post(do.Dismissed(name, self.now))

    def pin(self, name: str, pinned: bool) -> None:
        self.post(do.Pinned(name, pinned, self.now))

    def close(self) -> None:
        self.post(do.Closing(self.now))

    def advance(self, seconds: float) -> None:
        """Time passes; timers fire in order."""
        end = self.now + seconds
        while True:
            due = [(at, engine, event) for engine in self.engines.values() for at, event in engine.timers]
            first = min(due, key=lambda one: one[0], default=None)
            at = min(first[0] if first else float("inf"), self.wake_at)
            if at > end:
                break
            self.now = max(self.now, at)
            if first is not None and first[0] <= self.wake_at:
                _, engine, event = first
                engine.timers.remove((first[0], event))
                engine.post(event)
                self.settle()
            else:
                self.wake_at = float("inf")
                self.post(do.Ticked(self.now))
        self.now = end

    # -- effects

    def post(self, event: do.Event) -> None:
        self._inbox.append(event)
        self.settle()

    def later(self, call: object) -> None:
        self._later.append(call)

    def settle(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox or self._later:
                if self._inbox:
                    event = self._inbox.pop(0)
                    self.n_events += 1
                    if isinstance(event, do.PhaseChanged) and event.phase is Phase.READY:
                        self.served_at[event.profile] = []
                    for effect in decide(self.state, event):
                        self._perform(effect)
                else:
                    self._later.pop(0)()  # type: ignore[operator]
        finally:
            self._busy = False
        self.check()

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Grant(ticket):
                self._grant(ticket)
            case do.Refuse(who, error):
                self.answered[who] += 1
                assert self.answered[who] == 1, "settled once"
                if isinstance(who, Ticket):
                    self.waiting.remove(who)
                    self.refused.append((who, error.code))
            case do.Fulfil(wish):
                self.answered[wish] += 1
                assert self.answered[wish] == 1, "settled once"
            case do.Survey(name):
                self._inbox.append(do.Surveyed(name, self.need(self.engines[name].profile), self.now))
            case do.Load(name, _, insist):
                self.engines[name].post(life.Wanted(insist=insist))
            case do.Stop(name, cause):
                held = [t for t in self.running if t.wish.profile == name]
                assert cause is not Cause.EVICTED or not held, "a leased model is never a victim"
                self.engines[name].post(life.Unwanted(cause))
            case do.Drained(name):
                self.engines[name].post(life.Drained())
            case do.Reclaim(name):
                self.returning.append(name)
            case do.Reprofile(profile):
                self.engines[profile.name].profile = profile
            case do.Forget(name):
                assert not self.engines.pop(name).alive
            case do.Wake(at):
                self.wake_at = at
            case _:
                pass

    def _grant(self, ticket: Ticket) -> None:
        self.answered[ticket] += 1
        assert self.answered[ticket] == 1, "settled once"
        self.waiting.remove(ticket)
        lane = [t for t in self.waiting if _lane(t) == _lane(ticket)]
        assert all(t.number > ticket.number for t in lane), "first come, first served in a lane"
        self._check_turn(ticket)
        self.running.append(ticket)
        self.granted.append(ticket)
        if self.engines[ticket.wish.profile].machine.phase is not Phase.READY:  # it just died
            self.running.remove(ticket)
            self.granted.remove(ticket)
            self.answered[ticket] -= 1
            self.waiting.append(ticket)
            self._inbox.append(do.Returned(ticket, self.now))

    def _check_turn(self, ticket: Ticket) -> None:
        """Whoever has waited `max_wait_s` for a model that needs all the memory is next, once this one had its turn."""
        model = self.state.models[ticket.wish.profile]
        served_at = self.served_at.setdefault(model.name, [])
        had_its_turn = any(at < self.n_events for at in served_at)
        served_at.append(self.n_events)
        if not had_its_turn or self.now - model.since < model.profile.min_resident_s:
            return
        if self.state.policy.fifo or any(m.pinned for m in self.state.models.values()):
            return
        for other in self.state.models.values():
            whole = self.need(other.profile).on(HOST) == self.state.policy.budget
            if other is not model and whole and other.phase in DOWN and not other.held and not other.removed:
                assert self.now < other.overdue_at(), "the bound on waiting holds"

    # -- promises

    def check(self) -> None:
        taken = plus(*(engine.held for engine in self.engines.values()))
        self.peak = {device: max(mib, self.peak.get(device, 0)) for device, mib in (self.peak | taken).items()}
        assert not beyond(taken, self.state.policy.budget), (taken, self.state.policy.budget)
        for name, engine in self.engines.items():
            busy = sum(t.wish.profile == name for t in self.running) + engine.orphans
            if engine.machine.phase is Phase.READY:
                assert busy <= engine.profile.slots, "dispatched only up to the slots"
                self.check_no_one_is_forgotten(self.state.models[name])

    def check_no_one_is_forgotten(self, model: Model) -> None:
        free = model.busy < model.slots
        if not free or not model.queue.n or model.closed_to is not None or model.queue.n_solo:
            return
        if any(t.solo for t in model.leases) or model.profile.mode == "low_latency" or model.phase is not Phase.READY:
            return
        raise AssertionError(f"a free slot and {model.queue.n} who wait for {model.name}")

    def run_down(self) -> None:
        """Let everything end that can: nobody may be left over."""
        for _ in range(400):
            if not (self.waiting or self.running or self.returning or self._on_the_way()):
                break
            for ticket in list(self.running):
                if ticket in self.running:
                    self.finish(ticket)
            for name in list(self.engines):
                if name in self.engines:
                    self.ready(name)
                    self.look_at_slots(name)
            for name in list(self.returning):
                self.memory_back(name)
            self.advance(0.5)
        assert not self.waiting, [(t.wish, t.number, t.solo) for t in self.waiting]
        for name, model in self.state.models.items():
            assert (len(model.leases), model.lingering, model.queue.n, model.queue.n_solo) == (0, 0, 0, 0), name
            assert not model.wishes

    def _on_the_way(self) -> bool:
        wished = any(model.wishes or model.lingering for model in self.state.models.values())
        return wished or any(e.machine.phase not in (*DOWN, Phase.READY) for e in self.engines.values())


def _lane(ticket: Ticket) -> tuple[object, ...]:
    wish = ticket.wish
    return wish.profile, wish.priority, wish.client, wish.share, ticket.solo


def changed(profile: Profile, **values: object) -> Profile:
    return replace(profile, **values)  # type: ignore[arg-type]

"""Writing down what happened: the first half of `schedule.decide`. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from garra.errors import EngineDown, GarraError, Quarantined, QueueFull, ShuttingDown
from garra.spec import HOPELESS, Cause, Phase, Policy
from garra.supervisor.happenings import (
    Arrived,
    Budgeted,
    Closing,
    Configured,
    Dismissed,
    Effect,
    Ended,
    Event,
    Examine,
    Fulfil,
    Insisted,
    Left,
    MemoryBack,
    PhaseChanged,
    Pinned,
    Planned,
    Reclaim,
    Refuse,
    Renewed,
    Reprofile,
    Reserved,
    Returned,
    SlotsSeen,
    Stop,
    Surveyed,
    Ticked,
    WatchSlots,
)
from garra.supervisor.machine import COOLDOWN_S
from garra.supervisor.model import LoadWish, Model
from garra.supervisor.queue import Ticket
from garra.traffic import Outcome

FAILURES_IN_A_ROW = 5
"""5xx answers after which the engine itself is put to the test."""
_BLAME_LIMIT = 256
_BLAME_S = 600.0
_SHUTDOWN_RETRY_S = 5


@dataclass(slots=True)
class State:
    """All there is to decide from. Only `decide` writes it."""

    policy: Policy
    models: dict[str, Model] = field(default_factory=dict)
    closing: bool = False
    reserved: bool = False
    """The machine is somebody's alone: nothing is loaded, everybody waits."""
    blame: OrderedDict[bytes, tuple[int, float]] = field(default_factory=OrderedDict)
    """Requests under which an engine died: how often, and when last."""
    wake_at: float = float("inf")
    n_arrived: int = 0
    reading_ahead: set[str] = field(default_factory=set)


def note(state: State, event: Event, effects: list[Effect]) -> None:
    """Write down what happened."""
    match event:
        case Arrived(ticket, at, again):
            _arrive(state, ticket, at, again, effects)
        case Ended(ticket):
            _end(state, event, effects)
        case Left(ticket):
            model = state.models[ticket.wish.profile]
            model.queue.remove(ticket)
            model.tally.outcomes[Outcome.LEFT] += 1
        case Returned(ticket):
            model = state.models[ticket.wish.profile]
            model.leases.discard(ticket)
            model.n_solo_leases -= ticket.solo
            model.queue.shares.correct(ticket.wish, 0.0)
            ticket.granted, ticket.answering = None, False
            model.queue.add(ticket)
        case PhaseChanged(profile):
            _follow(state, state.models[profile], event, effects)
        case SlotsSeen(profile, n_busy, n_answering):
            model = state.models[profile]
            model.lingering = max(0, min(model.lingering, n_busy - n_answering))
        case Insisted(wish):
            _insist(state, wish, effects)
        case Dismissed(profile):
            model = state.models[profile]
            error = EngineDown(f"{profile} was unloaded while it loaded")
            effects += [Refuse(wish, error) for wish in model.wishes]
            model.wishes.clear()
            stop(model, Cause.REQUESTED, effects)
        case Reserved(on):
            state.reserved = on
        case Pinned(profile, pinned):
            state.models[profile].pinned = pinned
        case MemoryBack(profile):
            if (returned := state.models.get(profile)) is not None and returned.returning:
                returned.held, returned.returning = {}, False
        case Surveyed(profile, need):
            if (surveyed := state.models.get(profile)) is not None:
                surveyed.need, surveyed.surveying = need, False
        case Planned(profile, claim):
            if (planned := state.models.get(profile)) is not None and planned.held:
                planned.held = claim
        case Budgeted(budget):
            state.policy = replace(state.policy, budget=budget)
        case Renewed(at):
            for model in state.models.values():
                model.need = None
                _restart(state, model, at, effects)
        case Configured():
            _configure(state, event, effects)
        case Closing():
            _close(state, effects)
        case Ticked():
            state.wake_at = float("inf")


def _arrive(state: State, ticket: Ticket, now: float, again: bool, effects: list[Effect]) -> None:
    model = state.models[ticket.wish.profile]
    if not ticket.number:
        state.n_arrived += 1
        ticket.number = state.n_arrived
    refusal = _objection(state, model, ticket, now)
    if refusal is not None:
        outcome, error = refusal
        model.tally.outcomes[outcome] += 1
        effects.append(Refuse(ticket, error))
        return
    model.tally.retries += again
    model.see(ticket)
    model.queue.add(ticket)


def _objection(state: State, model: Model, ticket: Ticket, now: float) -> tuple[Outcome, GarraError] | None:
    """Why a newcomer is not let in. What it was blamed for makes it a suspect, who runs alone."""
    if state.closing:
        return Outcome.DOWN, closed()
    fingerprint = ticket.wish.fingerprint
    times, last = state.blame.get(fingerprint, (0, 0.0)) if fingerprint is not None else (0, 0.0)
    if times and now - last < _BLAME_S:
        if times > 1:
            return Outcome.QUARANTINED, Quarantined(
                f"this request killed the engine of {model.name} {times} times and is not tried again for "
                f"{_BLAME_S / 60:.0f} minutes; other requests are served",
                fix=f"garra logs {model.name} shows what it died of; change the request",
            )
        ticket.solo = True
    if model.phase is Phase.FAILED and not model.wishes:
        return Outcome.DOWN, broken(model, now)
    full = model.queue.n >= model.profile.max_queue
    if full and (model.phase is not Phase.READY or model.busy >= model.slots or model.queue.n):
        wait = model.retry_after_s()
        return Outcome.FULL, QueueFull(
            f"{model.queue.n} requests wait for {model.name} already", fix=f"try again in {wait} s", retry_after_s=wait
        )
    return None


def _end(state: State, event: Ended, effects: list[Effect]) -> None:
    ticket, at = event.ticket, event.at
    model = state.models[ticket.wish.profile]
    if event.outcome is Outcome.COMPLETE:
        model.complete(ticket, event.tokens, at)
        state.blame.pop(ticket.wish.fingerprint or b"", None)
        return
    model.release(ticket, event.outcome, event.tokens, at)
    granted = ticket.granted if ticket.granted is not None else at
    match event.outcome:
        case Outcome.FAILED:
            model.n_failed += 1
            if model.n_failed >= FAILURES_IN_A_ROW:
                effects.append(Examine(model.name, model.n_failed))
                model.n_failed = 0
        case Outcome.DIED if event.fingerprint is not None:
            times, _ = state.blame.pop(event.fingerprint, (0, 0.0))
            state.blame[event.fingerprint] = (times + 1, at)
            while len(state.blame) > _BLAME_LIMIT:
                state.blame.popitem(last=False)
        case Outcome.LEFT if event.asked and model.phase in (Phase.READY, Phase.DRAINING) and granted >= model.since:
            model.lingering += 1  # the engine goes on until it notices
            effects.append(WatchSlots(model.name))
        case _:
            pass


def _follow(state: State, model: Model, event: PhaseChanged, effects: list[Effect]) -> None:
    """The engine is in another phase."""
    before, now = model.phase, event.at
    model.phase, model.cause, model.detail, model.since = event.phase, event.cause, event.detail, now
    if event.phase not in (Phase.READY, Phase.DRAINING, Phase.STOPPING):
        model.lingering = 0
    match event.phase:
        case Phase.LOADING:
            model.load_began = now
        case Phase.READY:
            model.slots, model.idle_since, model.n_taken, model.contested = event.slots, now, 0, None
            model.learn_load(now - model.load_began)
            model.tally.last_load_s = now - model.load_began
            model.tally.load.add(model.tally.last_load_s)
            effects += [Fulfil(wish) for wish in model.wishes]
            model.wishes.clear()
        case Phase.BACKOFF if event.cause is not None:
            model.tally.restarts[event.cause] += 1
        case Phase.COLD | Phase.FAILED:
            model.left_at = now
            if event.phase is Phase.FAILED:
                model.need = None  # whoever mends it may bring another file
            if event.cause is not None and before is not Phase.FAILED:
                model.tally.stops[event.cause] += 1
            if model.held and not model.returning:
                model.returning = True
                effects.append(Reclaim(model.name))
        case _:
            pass
    state.reading_ahead.discard(model.name)


def _insist(state: State, wish: LoadWish, effects: list[Effect]) -> None:
    model = state.models[wish.profile]
    if state.closing:
        effects.append(Refuse(wish, closed()))
    elif model.phase is Phase.READY:
        effects.append(Fulfil(wish))
    else:
        state.n_arrived += 1
        wish.number = state.n_arrived
        model.wishes.append(wish)


def _configure(state: State, event: Configured, effects: list[Effect]) -> None:
    """Models whose engines would start differently drain and start again if they were up; others only learn."""
    state.policy = event.policy
    for name, profile in event.profiles.items():
        model = state.models.get(name)
        if model is None:
            state.models[name] = Model(profile, pinned=profile.pin)
            continue
        before, model.profile, model.removed = model.profile, profile, False
        if profile.pin != before.pin:
            model.pinned = profile.pin
        effects.append(Reprofile(profile))
        if not profile.launches_like(before) or profile.memory_mib != before.memory_mib:
            model.need = None
        if not profile.launches_like(before):
            _restart(state, model, event.at, effects)
    for name, model in state.models.items():
        if name not in event.profiles:
            model.removed = True
            gone = EngineDown(f"the profile {name} was removed from the configuration")
            refuse_all(model, gone, Outcome.DOWN, effects)
            stop(model, Cause.REQUESTED, effects)


def _restart(state: State, model: Model, now: float, effects: list[Effect]) -> None:
    """Drain and start again, if it is up or on its way."""
    if model.phase in (Phase.LOADING, Phase.READY, Phase.BACKOFF):
        stop(model, Cause.REQUESTED, effects)
        state.n_arrived += 1
        model.wishes.append(LoadWish(model.name, now, state.n_arrived))


def _close(state: State, effects: list[Effect]) -> None:
    state.closing = True
    for model in state.models.values():
        refuse_all(model, closed(), Outcome.DOWN, effects)
        stop(model, Cause.REQUESTED, effects)


def stop(model: Model, cause: Cause, effects: list[Effect]) -> None:
    """Let its engine go, if there is one; the phase follows at once, so that no later line counts on it."""
    after = {
        Phase.READY: Phase.DRAINING,
        Phase.LOADING: Phase.STOPPING,
        Phase.BACKOFF: Phase.COLD,
        Phase.FAILED: Phase.COLD,
    }.get(model.phase)
    if after is None and model.phase is Phase.COLD:
        return
    model.phase = after or model.phase
    effects.append(Stop(model.name, cause))


def refuse_all(model: Model, error: GarraError, outcome: Outcome, effects: list[Effect]) -> None:
    for ticket in list(model.queue):
        model.queue.remove(ticket)
        model.tally.outcomes[outcome] += 1
        effects.append(Refuse(ticket, error))
    effects += [Refuse(wish, error) for wish in model.wishes]
    model.wishes.clear()


def broken(model: Model, now: float) -> EngineDown:
    """Why a request cannot be served by this engine, as its client is told."""
    fix = f"garra logs {model.name}; then: garra load {model.name}"
    if model.cause in HOPELESS:
        what = f"{model.name} cannot be loaded ({model.cause}): {model.detail}"
        return EngineDown(what, fix=fix, retry_after_s=int(COOLDOWN_S))
    left_s = max(1, round(model.since + COOLDOWN_S - now))
    return EngineDown(f"{model.name} is down ({model.cause}): {model.detail}", fix=fix, retry_after_s=left_s)


def closed() -> ShuttingDown:
    return ShuttingDown("garra is shutting down", retry_after_s=_SHUTDOWN_RETRY_S)

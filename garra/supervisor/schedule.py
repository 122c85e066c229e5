"""Who is served, who waits, who is loaded and who must go: one function, `decide(state, event) -> effects`.

It awaits nothing, reads no clock and draws nothing at random; `state` is all it changes. The same events always give
the same effects. The fleet posts what happened, in order, and performs what comes back.

The order of decisions, after every event:

 0. Where nobody waits, neither for the model nor for its place, a free slot is given, and given back, at once.
 1. A newcomer is refused at once if garra is closing (503), if it killed the engine twice (500), if its engine is
    broken (503) or its queue is full while no slot is free (429). Otherwise it waits, if only for the next lines.
 2. Who has waited for `queue_timeout_s` is refused (504).
 3. Who waits for a broken engine is refused (503). One start answers all who wait for it.
 4. While the machine is reserved, all engines leave and none is loaded. Else models that are wanted and not in memory
    get a place (placement.py): at once if they fit; else the cheapest set of others leaves, once their leases have
    ended. A load nobody waits for any more gives way.
 5. Free slots go to whose turn it is (queue.py), unless the model must yield to another.
 6. Idle engines whose `idle_ttl_s` is over are stopped.
 7. The next moment at which time alone changes one of these is asked for.
"""

from __future__ import annotations

from garra.errors import DoesNotFit, QueueTimeout
from garra.spec import Cause, Phase
from garra.supervisor.happenings import (
    Arrived,
    Drained,
    Effect,
    Ended,
    Event,
    Forget,
    Grant,
    Load,
    ReadAhead,
    Refuse,
    Survey,
    Wake,
)
from garra.supervisor.model import CROWD_S, DOWN, Model
from garra.supervisor.placement import allowance, place
from garra.supervisor.queue import Ticket
from garra.supervisor.records import State, broken, note, refuse_all, stop
from garra.supervisor.warmth import Warmth
from garra.traffic import Outcome


def decide(state: State, event: Event) -> list[Effect]:
    """What is to be done now that `event` happened, in order. See the module's docstring for the order of decisions."""
    if isinstance(event, Arrived) and not event.again and serve_at_once(state, event.ticket, event.at):
        return [Grant(event.ticket)]
    if isinstance(event, Ended) and end_at_once(state, event):
        return []
    effects: list[Effect] = []
    note(state, event, effects)
    _settle(state, event.at, effects)
    return effects


def serve_at_once(state: State, ticket: Ticket, now: float) -> bool:
    """0. for a newcomer: whether it has a slot now. The whole of `decide` for most requests, for half of its cost."""
    model = state.models[ticket.wish.profile]
    if not model.calm or state.blame or state.closing or not model.has_room_for(ticket, now):
        return False
    state.n_arrived += 1
    ticket.number = state.n_arrived
    model.lease(ticket, now)
    return True


def end_at_once(state: State, event: Ended) -> bool:
    """0. for an answer: whether its end changes nothing for anybody else. Then it is written down, and all is done."""
    model = state.models[event.ticket.wish.profile]
    if event.outcome is not Outcome.COMPLETE or not model.calm or event.ticket.solo:
        return False
    if len(model.leases) == 1 and (model.ttl_s or event.ticket.wish.keep_s is not None):
        return False
    model.complete(event.ticket, event.tokens, event.at)
    return True


def _settle(state: State, now: float, effects: list[Effect]) -> None:
    """Decide everything that can be decided now: 2 to 7 of the module's docstring."""
    models = state.models.values()
    waiting = [model for model in models if model.queue.n or model.wishes]
    for model in waiting:
        _expire(model, now, effects)
        _refuse_broken(model, now, effects)
    if state.reserved:
        for model in models:
            if model.phase in (Phase.READY, Phase.LOADING, Phase.BACKOFF):
                stop(model, Cause.REQUESTED, effects)
    elif any(model.wanted and model.phase is not Phase.READY for model in waiting):
        _survey(waiting, effects)
        _place(state, now, effects)
    else:
        for model in models:
            model.closed_to = model.contested = None
    for model in waiting:
        if model.queue.n and model.phase is Phase.READY and model.busy < model.slots:
            _dispatch(model, now, effects)
    for model in models:
        if model.phase is Phase.DRAINING and not model.leases:
            effects.append(Drained(model.name))
            model.phase = Phase.STOPPING
        elif model.ttl_s and _idle(model) and now - model.idle_since >= model.ttl_s:
            stop(model, Cause.IDLE, effects)
    if any(model.removed for model in models):
        _forget(state, effects)
    _wake(state, waiting, now, effects)


def _expire(model: Model, now: float, effects: list[Effect]) -> None:
    limit_s = model.profile.queue_timeout_s
    while (oldest := model.queue.oldest()) is not None and now - oldest.arrived >= limit_s:
        model.queue.remove(oldest)
        model.tally.outcomes[Outcome.TIMEOUT] += 1
        wait = model.retry_after_s()
        what = f"no slot of {model.name} became free within {limit_s:g} s"
        effects.append(Refuse(oldest, QueueTimeout(what, fix=f"try again in {wait} s", retry_after_s=wait)))


def _refuse_broken(model: Model, now: float, effects: list[Effect]) -> None:
    if model.phase is not Phase.FAILED or any(not wish.tried for wish in model.wishes):
        return
    refuse_all(model, broken(model, now), Outcome.DOWN, effects)


def _survey(waiting: list[Model], effects: list[Effect]) -> None:
    """Have it found out what those take that are wanted and have no place: nothing is placed on a guess."""
    for model in waiting:
        if model.need is None and not model.surveying and model.phase in DOWN:
            model.surveying = True
            effects.append(Survey(model.name))


def _place(state: State, now: float, effects: list[Effect]) -> None:
    moves = place(state.models.values(), state.policy, now)
    for model, why, fix in moves.hopeless:
        refuse_all(model, DoesNotFit(why, fix=fix), Outcome.DOWN, effects)
        model.need = None  # a person may change what stands in its way
    for model, spot in moves.load:
        insist = bool(model.wishes)
        for wish in model.wishes:
            wish.tried = True
        model.tally.swaps += model.swapping
        model.swapping = False
        model.phase = Phase.LOADING
        model.warmth = Warmth()
        model.place = allowance(model, state.models.values(), state.policy, spot)
        effects.append(Load(model.name, model.place, insist))
    for model in state.models.values():
        if model.phase is Phase.BACKOFF and any(not wish.tried for wish in model.wishes):
            for wish in model.wishes:
                wish.tried = True
            effects.append(Load(model.name, model.place, insist=True))
    for model in moves.evict:
        stop(model, Cause.EVICTED, effects)
    for model in moves.next_up:
        if model.name not in state.reading_ahead:
            state.reading_ahead.add(model.name)
            effects.append(ReadAhead(model.name))


def _dispatch(model: Model, now: float, effects: list[Effect]) -> None:
    while model.busy < model.slots:
        ticket = model.queue.best(
            now,
            model.profile.max_wait_s,
            lambda ticket: model.may_take(ticket, now),
            lambda ticket: model.warmth.suits(ticket.wish.chain),
        )
        if ticket is None:
            return
        model.queue.remove(ticket)
        model.lease(ticket, now)
        effects.append(Grant(ticket))


def _idle(model: Model) -> bool:
    return model.phase is Phase.READY and not model.busy and not model.wanted and not model.pinned


def _forget(state: State, effects: list[Effect]) -> None:
    for name, model in list(state.models.items()):
        if model.removed and model.phase in DOWN and not model.held and not model.leases:
            del state.models[name]
            effects.append(Forget(name))


def _wake(state: State, waiting: list[Model], now: float, effects: list[Effect]) -> None:
    """Ask to be woken when time alone changes a decision; a moment that passed already is no such."""
    moments: list[float] = []
    for model in waiting:
        if (oldest := model.queue.oldest()) is not None:
            moments.append(oldest.arrived + model.profile.queue_timeout_s)
        if model.phase is Phase.READY and model.queue.n and model.busy < model.slots:  # kept for others who were about
            moments += [seen + CROWD_S for seen in model.seen.values()]
    for model in state.models.values():
        if model.contested is not None and model.phase is Phase.READY:
            moments.append(model.since + model.profile.min_resident_s)
        if model.ttl_s and _idle(model):
            moments.append(model.idle_since + model.ttl_s)
    at = min((moment for moment in moments if moment > now), default=float("inf"))
    if at != state.wake_at:
        state.wake_at = at
        effects.append(Wake(at))

"""Which models are in memory: who is loaded next and who must leave for it. Pure.

Never a victim: a model with a lease, one that loads for somebody, a pinned one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from garra.spec import Phase, Policy
from garra.supervisor.model import DOWN, Model


@dataclass(slots=True)
class Moves:
    """What placement wants done, in names of models."""

    load: list[Model] = field(default_factory=list)
    evict: list[Model] = field(default_factory=list)
    next_up: list[Model] = field(default_factory=list)
    """Loaded as soon as what is in the way has left: worth reading ahead."""
    hopeless: list[tuple[Model, str]] = field(default_factory=list)
    """Can never be loaded, and why."""


def place(models: Collection[Model], policy: Policy, now: float) -> Moves:
    """Moves for all models somebody waits for, most urgent first; sets `closed_to` and `contested` on those in the way.

    1. What fits is loaded. 2. What fits once those that are leaving have left, waits. 3. Else the cheapest sufficient
    set of models that may leave is closed for newer requests, and evicted when its last lease has ended. 4. If they do
    not suffice, it waits until more of them may leave. A less urgent model may only go ahead where both have room.
    """
    moves, budget_mib = Moves(), policy.budget_mib
    for model in models:
        model.closed_to = None
        model.swapping = model.swapping and model.wanted
    contested: set[str] = set()
    ahead_mib = 0  # for more urgent ones that still wait
    pinned_mib = sum(m.held_mib for m in models if m.pinned and m.phase is Phase.READY)
    for target in sorted((m for m in models if _needs_place(m)), key=lambda m: _urgency(m, now, policy)):
        need = target.need_mib(budget_mib)
        if need + pinned_mib > budget_mib:
            moves.hopeless.append((target, _why(target, need, pinned_mib, budget_mib)))
            continue
        free = budget_mib - sum(m.held_mib for m in models)
        if target.held_mib:
            pass  # of its last engine: that is on its way back, nobody need leave for it
        elif need <= free and (not ahead_mib or need + ahead_mib + pinned_mib <= budget_mib):
            target.held_mib = need
            moves.load.append(target)
            continue
        elif not ahead_mib:
            contested |= _make_room(target, models, need - free, now, moves, policy)
        ahead_mib += need
    for model in models:
        if model.name not in contested:
            model.contested = None
    return moves


def _needs_place(model: Model) -> bool:
    return model.wanted and model.phase in DOWN and not model.removed


def _urgency(model: Model, now: float, policy: Policy) -> tuple[bool, bool, float, int]:
    """1. For whom room is being made already. 2. Who is overdue, the longest out of memory first: models take turns.
    3. The best class that waits. 4. Who came first."""
    first = model.first()
    number = first.number if first is not None else 0
    if policy.fifo:
        return not model.swapping, False, 0.0, number
    if now >= model.overdue_at():
        return not model.swapping, False, model.left_at, number
    best = 0 if model.wishes else min((key[0] for key in model.queue.lanes), default=0)
    return not model.swapping, True, best, number


def _make_room(
    target: Model, models: Iterable[Model], missing_mib: int, now: float, moves: Moves, policy: Policy
) -> set[str]:
    """Close or evict what must leave for `target`; the names of those it contends with."""
    others = [m for m in models if m.held_mib]
    missing_mib -= sum(m.held_mib for m in others if m.leaving)
    if missing_mib <= 0:
        target.swapping = True
        moves.next_up.append(target)
        return set()
    in_the_way = [m for m in others if not m.leaving and not m.pinned]
    for model in in_the_way:
        if model.phase is Phase.READY and model.contested is None:
            model.contested = 0
    chosen = _cheapest([m for m in in_the_way if _may_leave(m, target, now, policy)], missing_mib, now)
    first = target.first()
    for model in chosen:
        model.closed_to = first.number if policy.fifo and first is not None else 0
    if chosen:
        moves.next_up.append(target)
    if chosen and not any(model.leases or _serves_first(model) for model in chosen):
        target.swapping = True
        moves.evict.extend(chosen)
    return {m.name for m in in_the_way}


def _may_leave(model: Model, target: Model, now: float, policy: Policy) -> bool:
    """Whether `model` may take no newer requests for `target`'s sake.

    1. One that is on its way up: only if nobody waits for it. 2. Whoever it was loaded for is served first, else it was
    loaded in vain. 3. Not before `min_resident_s`. 4. At once for somebody who has waited for `max_wait_s`. 5. When it
    is idle. 6. When it has served `swap_batch` requests while others waited.
    """
    if model.phase in (Phase.LOADING, Phase.BACKOFF):
        return not model.wanted
    if model.phase is not Phase.READY:
        return False
    if policy.fifo:
        return True  # those who came before are served first all the same
    if model.queue.n and not model.n_taken:
        return False
    if now - model.since < model.profile.min_resident_s:
        return False
    if now >= target.overdue_at():
        return True
    return not (model.leases or model.queue.n) or (model.contested or 0) >= model.profile.swap_batch


def _serves_first(model: Model) -> bool:
    """Strictly in order of arrival: older requests than those it makes room for still wait for it."""
    return model.closed_to is not None and any(lane[0].number < model.closed_to for lane in model.queue.lanes.values())


def _cheapest(candidates: list[Model], missing_mib: int, now: float) -> list[Model]:
    """As few as needed: idle ones first, by idle time over the cost of a reload; none if all are not enough."""

    def worth(model: Model) -> tuple[bool, float]:
        idle_s = 0.0 if model.leases else now - model.idle_since
        return bool(model.leases), -idle_s / max(0.001, model.reload_s)

    chosen: list[Model] = []
    for model in sorted(candidates, key=worth):
        if sum(m.held_mib for m in chosen) >= missing_mib:
            break
        chosen.append(model)
    if sum(m.held_mib for m in chosen) < missing_mib:
        return []
    for model in list(chosen):  # an early small one may be spared by a later large one
        if sum(m.held_mib for m in chosen) - model.held_mib >= missing_mib:
            chosen.remove(model)
    return chosen


def _why(target: Model, need: int, pinned: int, budget: int) -> str:
    beside = f", and {pinned} MiB are pinned" if pinned else ""
    return f"cannot load {target.name}: it needs {need} MiB, the budget is {budget} MiB{beside}"

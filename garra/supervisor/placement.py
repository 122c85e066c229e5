"""Which models are in memory: who is loaded next, where, and who must leave for it. Pure.

Memory is counted per device: each GPU, and the host. A model is put on one GPU, whichever has room, or on none.
Never a victim: a model with a lease, one that loads for somebody, a pinned one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from garra.bill import HOST, Claim, Need, Place, beyond, less, plus
from garra.spec import Phase, Policy
from garra.supervisor.model import DOWN, Model


@dataclass(slots=True)
class Moves:
    """What placement wants done."""

    load: list[tuple[Model, str]] = field(default_factory=list)
    """With the device each is put on."""
    evict: list[Model] = field(default_factory=list)
    next_up: list[Model] = field(default_factory=list)
    """Loaded as soon as what is in the way has left: worth reading ahead."""
    hopeless: list[tuple[Model, str, str]] = field(default_factory=list)
    """Can never be loaded, why, and what would help."""


def place(models: Collection[Model], policy: Policy, now: float) -> Moves:
    """Moves for all models somebody waits for, most urgent first; sets `closed_to` and `contested` on those in the way.

    1. What fits is loaded. 2. What fits once those that are leaving have left, waits. 3. Else the cheapest sufficient
    set of models that may leave is closed for newer requests, and evicted when its last lease has ended. 4. If they do
    not suffice, it waits until more of them may leave. A less urgent model may only go ahead where both have room.
    """
    moves, budget = Moves(), policy.budget
    for model in models:
        model.closed_to = None
        model.swapping = model.swapping and model.wanted
    contested: set[str] = set()
    ahead: dict[str, int] = {}  # for more urgent ones that still wait
    pinned = plus(*(m.held for m in models if m.pinned and m.phase is Phase.READY))
    for target in sorted((m for m in models if _needs_place(m)), key=lambda m: _urgency(m, now, policy)):
        need = target.need
        assert need is not None
        possible = [one for one in _spots(need, budget) if not beyond(plus(need.on(one), pinned), budget)]
        if need.why_not or not possible:
            moves.hopeless.append((target, *_why(target, need, pinned, budget)))
            continue
        free = less(budget, plus(*(m.held for m in models)))
        possible.sort(key=lambda one: -free.get(one, 0))
        if target.held:  # of its last engine: that is on its way back, nobody need leave for it
            ahead = plus(ahead, need.on(possible[0]))
            continue
        chosen = next((one for one in possible if _fits(need.on(one), free, ahead, pinned, budget)), None)
        if chosen is not None:
            target.held = need.on(chosen)
            moves.load.append((target, chosen))
            continue
        if not ahead:
            chosen = _easiest(target, models, free, possible, now, policy)
            contested |= _make_room(target, models, beyond(need.on(chosen), free), now, moves, policy)
        ahead = plus(ahead, need.on(chosen or possible[0]))
    for model in models:
        if model.name not in contested:
            model.contested = None
    return moves


def allowance(target: Model, models: Iterable[Model], policy: Policy, device: str) -> Place:
    """What it may take where it is put: all that the others leave."""
    left = less(policy.budget, plus(*(m.held for m in models if m is not target)))
    if device == HOST:
        return Place(None, 0, left.get(HOST, 0))
    return Place(int(device.removeprefix("gpu")), left.get(device, 0), left.get(HOST, 0))


def _needs_place(model: Model) -> bool:
    return model.wanted and model.phase in DOWN and not model.removed and model.need is not None


def _spots(need: Need, budget: Claim) -> list[str]:
    """The devices it could be put on."""
    return [device for device in budget if device != HOST] if need.vram_mib else [HOST]


def _fits(claim: Claim, free: Claim, ahead: Claim, pinned: Claim, budget: Claim) -> bool:
    return not beyond(claim, free) and not (ahead and beyond(plus(claim, ahead, pinned), budget))


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


def _easiest(
    target: Model, models: Collection[Model], free: Claim, possible: list[str], now: float, policy: Policy
) -> str:
    """The device on which room is made soonest: one that empties by itself, then one whose victims may leave."""

    def effort(device: str) -> tuple[bool, bool]:
        need = target.need
        assert need is not None
        missing = beyond(need.on(device), free)
        held = [m for m in models if m.held and m is not target]
        if not beyond(missing, plus(*(m.held for m in held if m.leaving))):
            return False, False
        leaving = [m for m in held if not m.leaving and not m.pinned and _may_leave(m, target, now, policy)]
        missing = beyond(missing, plus(*(m.held for m in held if m.leaving)))
        return True, not _cheapest(leaving, missing, now)

    return min(possible, key=effort)


def _make_room(
    target: Model, models: Iterable[Model], missing: Claim, now: float, moves: Moves, policy: Policy
) -> set[str]:
    """Close or evict what must leave for `target`; the names of those it contends with."""
    others = [m for m in models if m.held]
    missing = beyond(missing, plus(*(m.held for m in others if m.leaving)))
    if not missing:
        target.swapping = True
        moves.next_up.append(target)
        return set()
    in_the_way = [m for m in others if not m.leaving and not m.pinned and any(m.held.get(one) for one in missing)]
    for model in in_the_way:
        if model.phase is Phase.READY and model.contested is None:
            model.contested = 0
    chosen = _cheapest([m for m in in_the_way if _may_leave(m, target, now, policy)], missing, now)
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


def _cheapest(candidates: list[Model], missing: Claim, now: float) -> list[Model]:
    """As few as needed: idle ones first, by idle time over the cost of a reload; none if all are not enough."""

    def worth(model: Model) -> tuple[bool, float]:
        idle_s = 0.0 if model.leases else now - model.idle_since
        return bool(model.leases), -idle_s / max(0.001, model.reload_s)

    def enough(some: Iterable[Model]) -> bool:
        return not beyond(missing, plus(*(m.held for m in some)))

    chosen: list[Model] = []
    for model in sorted(candidates, key=worth):
        if enough(chosen):
            break
        if any(model.held.get(device) for device in missing):
            chosen.append(model)
    if not enough(chosen):
        return []
    for model in list(chosen):  # an early small one may be spared by a later large one
        if enough(one for one in chosen if one is not model):
            chosen.remove(model)
    return chosen


def _why(target: Model, need: Need, pinned: Claim, budget: Claim) -> tuple[str, str]:
    """Why it can never be loaded, and what would help."""
    if need.why_not:
        return need.why_not, need.fix
    claim = need.on(max(_spots(need, budget), key=lambda one: budget.get(one, 0), default="gpu0"))
    missing = beyond(plus(claim, pinned), budget)
    device = next(iter(missing), HOST)
    kind = "RAM" if device == HOST else "VRAM"
    beside = f", and {pinned[device]} MiB are pinned" if pinned.get(device) else ""
    what = f"cannot load {target.name}: it needs {claim.get(device, 0)} MiB of {kind}, "
    return (
        f"{what}the budget is {budget.get(device, 0)} MiB{beside}",
        "raise memory_budget_mib, or unpin what is pinned",
    )

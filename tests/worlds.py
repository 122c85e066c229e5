"""Worlds to begin a test of the scheduler with."""

from __future__ import annotations

from garra.bill import HOST
from garra.spec import Phase
from garra.traffic import Wish
from tests.fakes import profiles
from tests.world import World, changed

QUIET = {"max_wait_s": 30, "min_resident_s": 3, "swap_batch": 4, "slots": 2, "mode": "high_throughput"}


def world_of(
    *names: str,
    budget_mib: int = 100,
    memory_mib: dict[str, int] | None = None,
    fifo: bool = False,
    **changes: object,
) -> World:
    made = profiles(*names, **(QUIET | changes))
    for name, need in (memory_mib or {}).items():
        made[name] = changed(made[name], memory_mib=need)
    return World(made, {HOST: budget_mib}, fifo=fifo)


def loaded(w: World, *names: str) -> World:
    """The same with these models READY, each loaded for a request that is over."""
    for name in names:
        ticket = w.arrive(Wish(name))
        w.ready(name)
        w.finish(ticket)
    return w


def phases(w: World) -> dict[str, Phase]:
    return {name: engine.machine.phase for name, engine in w.engines.items()}


def swap(w: World, old: str, new: str) -> None:
    """The memory of `old` comes back and `new` starts."""
    assert phases(w)[old] is Phase.COLD, phases(w)
    w.memory_back(old)
    w.ready(new)

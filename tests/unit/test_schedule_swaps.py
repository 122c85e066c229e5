"""Which model is in memory, and which one leaves for it."""

from __future__ import annotations

import itertools
import random

import pytest

from garra.spec import Phase
from garra.supervisor.queue import Ticket
from garra.traffic import Wish
from tests.worlds import loaded, phases, swap, world_of


def test_waiters_of_one_model_share_one_load() -> None:
    w = world_of("a")
    tickets = [w.arrive(Wish("a")) for _ in range(2)]
    w.ready("a")
    assert w.running == tickets
    assert w.state.models["a"].tally.load.counts.count(1) == 1


def test_models_that_fit_stay_side_by_side() -> None:
    w = loaded(world_of("a", "b", memory_mib={"a": 40, "b": 60}), "a", "b")
    assert set(phases(w).values()) == {Phase.READY}


def test_a_resident_model_serves_its_batch_first_and_then_yields() -> None:
    w = loaded(world_of("a", "b", slots=1, swap_batch=4, max_wait_s=1000), "a")
    w.advance(10)
    queue = [w.arrive(Wish("a")) for _ in range(3)]
    other = w.arrive(Wish("b"))
    queue += [w.arrive(Wish("a")) for _ in range(6)]
    for _ in range(6):
        if phases(w)["a"] is not Phase.READY:
            break
        w.finish(w.running[0])
        w.advance(1)
    swap(w, "a", "b")
    assert w.granted[1:] == [*queue[:5], other], "one ran, then four more while b waited"
    assert w.state.models["b"].tally.swaps == 1


def test_a_resident_model_yields_when_somebody_has_waited_long_enough() -> None:
    w = loaded(world_of("a", "b", slots=1, swap_batch=1000, max_wait_s=20, max_queue=1000), "a")
    w.arrive(Wish("a"))
    other = w.arrive(Wish("b"))
    while phases(w)["a"] is Phase.READY:
        w.arrive(Wish("a"))
        w.advance(1)
        w.finish(w.running[0])
        assert w.now < 30
    swap(w, "a", "b")
    assert w.running == [other]
    assert 20 <= w.now - other.arrived <= 22


def test_an_idle_model_stays_for_its_least_time_and_no_longer() -> None:
    w = loaded(world_of("a", "b", min_resident_s=5), "a")
    other = w.arrive(Wish("b"))
    w.advance(4.5)
    mine = w.arrive(Wish("a"))
    assert mine in w.running, "whoever comes back finds it"
    w.finish(mine)
    w.advance(1)
    swap(w, "a", "b")
    assert w.running == [other]


def test_the_next_start_waits_for_the_memory() -> None:
    w = loaded(world_of("a", "b"), "a")
    w.advance(10)
    w.arrive(Wish("b"))
    assert phases(w) == {"a": Phase.COLD, "b": Phase.COLD}
    w.advance(1)
    assert phases(w)["b"] is Phase.COLD
    w.memory_back("a")
    assert phases(w)["b"] is Phase.LOADING


def test_a_load_nobody_waits_for_gives_way() -> None:
    w = world_of("a", "b")
    left = w.arrive(Wish("a"))
    w.leave(left)
    assert phases(w)["a"] is Phase.LOADING, "as long as nobody else needs the place"
    other = w.arrive(Wish("b"))
    swap(w, "a", "b")
    assert w.running == [other]


def test_a_load_somebody_waits_for_does_not() -> None:
    w = world_of("a", "b", max_wait_s=1)
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.advance(60)
    assert phases(w) == {"a": Phase.LOADING, "b": Phase.COLD}


def test_whoever_a_model_was_loaded_for_is_served_though_others_are_overdue() -> None:
    w = loaded(world_of("a", "b", slots=1, max_wait_s=5), "a")
    running = w.arrive(Wish("a"))
    other = w.arrive(Wish("b"))
    mine = w.arrive(Wish("a"))
    w.advance(10)
    w.finish(running)
    w.memory_back("a")
    w.advance(50)
    w.ready("b")
    assert w.running == [other]
    w.finish(other)
    w.advance(3)
    swap(w, "b", "a")
    assert w.running == [mine]


def test_the_victim_is_the_longest_idle_by_the_cost_of_loading_it_again() -> None:
    w = world_of("a", "b", "c", memory_mib={"a": 50, "b": 50, "c": 50})
    for name, load_s in (("a", 10.0), ("b", 1.0)):
        ticket = w.arrive(Wish(name))
        w.advance(load_s)
        w.ready(name)
        w.finish(ticket)
    w.advance(20)  # a has been idle a little longer, but is ten times as dear to load
    w.arrive(Wish("c"))
    assert phases(w) == {"a": Phase.READY, "b": Phase.COLD, "c": Phase.COLD}


def test_as_many_leave_as_are_needed_and_no_more() -> None:
    w = loaded(world_of("a", "b", "c", "d", memory_mib={"a": 20, "b": 30, "c": 50, "d": 50}), "a", "b", "c")
    w.advance(10)
    w.arrive(Wish("d"))
    assert [name for name, phase in phases(w).items() if phase is Phase.READY] in (["c"], ["a", "b"])


def test_nobody_leaves_for_memory_that_is_on_its_way_back() -> None:
    w = loaded(world_of("a", "b", memory_mib={"a": 60, "b": 40}), "a", "b")
    w.advance(10)
    w.dismiss("a")
    w.arrive(Wish("a"))
    w.advance(100)
    assert phases(w) == {"a": Phase.COLD, "b": Phase.READY}
    w.memory_back("a")
    assert phases(w) == {"a": Phase.LOADING, "b": Phase.READY}


def test_a_pinned_model_is_never_evicted_and_never_idle() -> None:
    w = loaded(world_of("a", "b", memory_mib={"a": 60, "b": 60}, idle_ttl_s=5), "a")
    w.pin("a", True)
    w.advance(100)
    ticket = w.arrive(Wish("b"))
    assert w.refused == [(ticket, "does_not_fit")]
    assert phases(w)["a"] is Phase.READY
    w.pin("a", False)
    w.advance(6)
    assert phases(w)["a"] is Phase.COLD


def test_a_small_model_may_overtake_only_where_both_have_room() -> None:
    w = loaded(world_of("a", "b", "c", memory_mib={"a": 60, "b": 80, "c": 20}), "a")
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.arrive(Wish("c"))
    assert phases(w)["c"] is Phase.LOADING
    w = loaded(world_of("a", "b", "c", memory_mib={"a": 60, "b": 90, "c": 20}), "a")
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.arrive(Wish("c"))
    assert phases(w)["c"] is Phase.COLD, "b would have to wait for it as well"


def test_strict_first_come_first_served_swaps_whenever_the_head_wants_another() -> None:
    w = world_of("a", "b", fifo=True)
    tickets = [w.arrive(Wish(name)) for name in "ababbaaaab"]
    w.run_down()
    assert w.granted == tickets
    assert sum(model.tally.swaps for model in w.state.models.values()) == 5


def test_both_models_overloaded_take_turns_of_their_least_time() -> None:
    w = world_of("a", "b", slots=1, max_wait_s=1, min_resident_s=10, max_queue=1000)
    for _ in range(200):
        w.arrive(Wish("a"))
        w.arrive(Wish("b"))
    turns: list[str] = []
    for _ in range(100):
        for name in w.engines:
            w.memory_back(name)
            w.ready(name)
        turns += [ticket.wish.profile for ticket in w.running]
        w.advance(1)
        for ticket in list(w.running):
            w.finish(ticket)
    assert sum(one != other for one, other in itertools.pairwise(turns)) in range(8, 12)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_starves_beyond_the_bound_and_one_drain(seed: int) -> None:
    """A flood on one model, one by one requests for another: each waits for the bound, running answers, a load."""
    rng = random.Random(seed)
    w = loaded(world_of("a", "b", slots=2, swap_batch=10_000, max_wait_s=20, max_queue=1000), "a")
    rare: list[Ticket] = []
    until: dict[Ticket, float] = {}
    longest_answer_s, load_s = 5.0, 3.0
    loading: dict[str, float] = {}
    for _ in range(1500):
        if len(w.waiting) < 50:
            w.arrive(Wish("a"))
        if rng.random() < 0.2 and all(ticket.wish.profile == "a" for ticket in w.waiting + w.running):
            rare.append(w.arrive(Wish("b")))
        for ticket in list(w.running):
            if w.now >= until.setdefault(ticket, w.now + rng.uniform(0.1, longest_answer_s)):
                w.finish(ticket)
        for name, phase in phases(w).items():
            if phase is Phase.LOADING and w.now >= loading.setdefault(name, w.now + load_s):
                w.ready(name)
                del loading[name]
        for name in list(w.returning):
            w.memory_back(name)
        w.advance(0.25)
    assert len(rare) > 10
    waits = [(t.granted if t.granted is not None else w.now) - t.arrived for t in rare]
    assert max(waits) <= 20 + longest_answer_s + load_s + 1


def test_a_reserved_machine_holds_no_engine_and_those_who_wait_are_served_afterwards() -> None:
    w = loaded(world_of("a", "b", slots=1), "a")
    running = w.arrive(Wish("a"))
    w.reserve(True)
    late, other = w.arrive(Wish("a")), w.arrive(Wish("b"))
    assert w.running == [running]  # what is being answered ends
    w.finish(running)
    w.memory_back("a")
    w.ready("a")
    w.ready("b")
    assert phases(w) == {"a": Phase.COLD, "b": Phase.COLD}
    assert not w.running
    w.reserve(False)
    w.ready("a")
    assert late in w.running
    w.finish(late)
    w.advance(40)
    for name in "ab":
        w.memory_back(name)
        w.ready(name)
    assert other in w.running

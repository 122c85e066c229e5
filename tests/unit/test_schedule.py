"""The scheduler's policy, one rule at a time."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from garra.spec import Cause, Phase
from garra.supervisor import machine as life
from garra.supervisor.queue import Ticket
from garra.traffic import Outcome, Priority, Wish
from tests.fakes import profiles
from tests.world import World, changed

QUIET = {"max_wait_s": 30, "min_resident_s": 3, "swap_batch": 4, "slots": 2, "mode": "high_throughput"}


def world(
    *names: str,
    budget_mib: int = 100,
    memory_mib: dict[str, int] | None = None,
    fifo: bool = False,
    **changes: object,
) -> World:
    made = profiles(*names, **(QUIET | changes))
    for name, need in (memory_mib or {}).items():
        made[name] = changed(made[name], memory_mib=need)
    return World(made, budget_mib, fifo=fifo)


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


# -- slots and bounds


def test_no_more_than_the_slots_are_dispatched_and_the_rest_can_still_leave() -> None:
    w = loaded(world("a"), "a")
    tickets = [w.arrive(Wish("a")) for _ in range(5)]
    assert w.running == tickets[:2]
    w.leave(tickets[2])
    w.finish(tickets[0])
    assert w.running == [tickets[1], tickets[3]]


def test_the_slot_of_a_client_that_left_is_busy_until_the_engine_says_otherwise() -> None:
    w = loaded(world("a"), "a")
    first, _, third = (w.arrive(Wish("a")) for _ in range(3))
    w.leave(first)
    assert third not in w.running
    w.look_at_slots("a")
    assert third in w.running


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    w = loaded(world("a", max_queue=3, slots=1), "a")
    for _ in range(3):
        ticket = w.arrive(Wish("a"))
        w.advance(4)
        w.finish(ticket)
    kept = [w.arrive(Wish("a")) for _ in range(4)]
    late = w.arrive(Wish("a"))
    assert w.refused == [(late, "queue_full")]
    model = w.state.models["a"]
    assert 2 < model.retry_after_s() <= 16, "three wait and one runs, by a measured service time of up to 4 s"
    assert w.running == kept[:1]


def test_a_wait_has_an_end() -> None:
    w = loaded(world("a", slots=1, queue_timeout_s=50), "a")
    w.arrive(Wish("a"))
    late = w.arrive(Wish("a"))
    w.advance(49)
    assert not w.refused
    w.advance(2)
    assert w.refused == [(late, "queue_timeout")]


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    w = world("a", memory_mib={"a": 101})
    ticket = w.arrive(Wish("a"))
    assert w.refused == [(ticket, "does_not_fit")]


# -- whose turn it is


def test_interactive_goes_first_and_batch_still_moves() -> None:
    w = loaded(world("a", slots=1, max_wait_s=10, max_queue=1000), "a")
    running = w.arrive(Wish("a", priority=Priority.INTERACTIVE))
    batch = w.arrive(Wish("a", "b", priority=Priority.BATCH))
    for _ in range(40):  # one interactive request always waits
        following = w.arrive(Wish("a", priority=Priority.INTERACTIVE))
        w.advance(1)
        w.finish(running)
        if w.running == [batch]:
            break
        running = following
        assert w.running == [following]
    assert w.running == [batch]
    assert 10 <= w.now - batch.arrived <= 12


def test_clients_share_by_tokens_not_by_requests() -> None:
    w = loaded(world("a", slots=1, max_queue=10_000), "a")
    running = w.arrive(Wish("a", "big", tokens=1000))
    for _ in range(300):
        w.arrive(Wish("a", "big", tokens=1000))
        w.arrive(Wish("a", "small", tokens=100))
    served: Counter[str] = Counter()
    for _ in range(110):
        end(w, running, running.wish.tokens)
        running = w.running[0]
        served[running.wish.client] += 1
    assert 8 <= served["small"] / served["big"] <= 12


def end(w: World, ticket: Ticket, tokens: float) -> None:
    from garra.supervisor.happenings import Ended

    w.running.remove(ticket)
    w.post(Ended(ticket, Outcome.COMPLETE, w.now, tokens))


def test_a_client_that_was_away_gets_no_more_than_its_share() -> None:
    w = loaded(world("a", slots=1, max_queue=1000), "a")
    for _ in range(50):
        w.finish(w.arrive(Wish("a", "busy")))
    for _ in range(10):
        w.arrive(Wish("a", "busy"))
        w.arrive(Wish("a", "away"))
    order = []
    for _ in range(10):
        order.append(w.running[0].wish.client)
        w.finish(w.running[0])
    assert order.count("away") == 5


def test_parts_of_a_client_only_divide_its_share() -> None:
    w = loaded(world("a", slots=1, max_queue=1000), "a")
    for _ in range(20):
        for part in "123456789":
            w.arrive(Wish("a", "many", part))
        w.arrive(Wish("a", "one"))
    clients, parts = Counter[str](), Counter[str]()
    for _ in range(38):
        clients[w.running[0].wish.client] += 1
        parts[w.running[0].wish.share] += 1
        w.finish(w.running[0])
    assert abs(clients["one"] - clients["many"]) <= 2
    assert max(parts[p] for p in "123456789") - min(parts[p] for p in "123456789") <= 1


def test_low_latency_keeps_a_slot_for_those_who_hold_none() -> None:
    w = loaded(world("a", slots=2, mode="low_latency"), "a")
    w.advance(120)
    greedy = [w.arrive(Wish("a", "greedy")) for _ in range(5)]
    assert w.running == greedy[:2], "alone it may have all"
    single = w.arrive(Wish("a", "single"))
    w.finish(greedy[0])
    assert w.running == [greedy[1], single]
    w.finish(single)
    assert w.running == [greedy[1]], "the last slot stays free for the other"
    again = w.arrive(Wish("a", "single"))
    assert again in w.running
    w.finish(again)
    w.advance(61)
    assert w.running == greedy[1:3], "nobody else has been about for a minute"


def test_low_latency_never_gives_its_last_slot_to_a_batch() -> None:
    w = loaded(world("a", slots=3, mode="low_latency"), "a")
    batch = [w.arrive(Wish("a", priority=Priority.BATCH)) for _ in range(5)]
    assert w.running == batch[:2]
    assert w.arrive(Wish("a")) in w.running


# -- swaps


def test_waiters_of_one_model_share_one_load() -> None:
    w = world("a")
    tickets = [w.arrive(Wish("a")) for _ in range(2)]
    w.ready("a")
    assert w.running == tickets
    assert w.state.models["a"].tally.load.counts.count(1) == 1


def test_models_that_fit_stay_side_by_side() -> None:
    w = loaded(world("a", "b", memory_mib={"a": 40, "b": 60}), "a", "b")
    assert set(phases(w).values()) == {Phase.READY}


def test_a_resident_model_serves_its_batch_first_and_then_yields() -> None:
    w = loaded(world("a", "b", slots=1, swap_batch=4, max_wait_s=1000), "a")
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
    w = loaded(world("a", "b", slots=1, swap_batch=1000, max_wait_s=20, max_queue=1000), "a")
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
    w = loaded(world("a", "b", min_resident_s=5), "a")
    other = w.arrive(Wish("b"))
    w.advance(4.5)
    mine = w.arrive(Wish("a"))
    assert mine in w.running, "whoever comes back finds it"
    w.finish(mine)
    w.advance(1)
    swap(w, "a", "b")
    assert w.running == [other]


def test_the_next_start_waits_for_the_memory() -> None:
    w = loaded(world("a", "b"), "a")
    w.advance(10)
    w.arrive(Wish("b"))
    assert phases(w) == {"a": Phase.COLD, "b": Phase.COLD}
    w.advance(1)
    assert phases(w)["b"] is Phase.COLD
    w.memory_back("a")
    assert phases(w)["b"] is Phase.LOADING


def test_a_load_nobody_waits_for_gives_way() -> None:
    w = world("a", "b")
    left = w.arrive(Wish("a"))
    w.leave(left)
    assert phases(w)["a"] is Phase.LOADING, "as long as nobody else needs the place"
    other = w.arrive(Wish("b"))
    swap(w, "a", "b")
    assert w.running == [other]


def test_a_load_somebody_waits_for_does_not() -> None:
    w = world("a", "b", max_wait_s=1)
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.advance(60)
    assert phases(w) == {"a": Phase.LOADING, "b": Phase.COLD}


def test_whoever_a_model_was_loaded_for_is_served_though_others_are_overdue() -> None:
    w = loaded(world("a", "b", slots=1, max_wait_s=5), "a")
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
    w = world("a", "b", "c", memory_mib={"a": 50, "b": 50, "c": 50})
    for name, load_s in (("a", 10.0), ("b", 1.0)):
        ticket = w.arrive(Wish(name))
        w.advance(load_s)
        w.ready(name)
        w.finish(ticket)
    w.advance(20)  # a has been idle a little longer, but is ten times as dear to load
    w.arrive(Wish("c"))
    assert phases(w) == {"a": Phase.READY, "b": Phase.COLD, "c": Phase.COLD}


def test_as_many_leave_as_are_needed_and_no_more() -> None:
    w = loaded(world("a", "b", "c", "d", memory_mib={"a": 20, "b": 30, "c": 50, "d": 50}), "a", "b", "c")
    w.advance(10)
    w.arrive(Wish("d"))
    assert [name for name, phase in phases(w).items() if phase is Phase.READY] in (["c"], ["a", "b"])


def test_a_pinned_model_is_never_evicted_and_never_idle() -> None:
    w = loaded(world("a", "b", memory_mib={"a": 60, "b": 60}, idle_ttl_s=5), "a")
    w.pin("a", True)
    w.advance(100)
    ticket = w.arrive(Wish("b"))
    assert w.refused == [(ticket, "does_not_fit")]
    assert phases(w)["a"] is Phase.READY
    w.pin("a", False)
    w.advance(6)
    assert phases(w)["a"] is Phase.COLD


def test_a_small_model_may_overtake_only_where_both_have_room() -> None:
    w = loaded(world("a", "b", "c", memory_mib={"a": 60, "b": 80, "c": 20}), "a")
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.arrive(Wish("c"))
    assert phases(w)["c"] is Phase.LOADING
    w = loaded(world("a", "b", "c", memory_mib={"a": 60, "b": 90, "c": 20}), "a")
    w.arrive(Wish("a"))
    w.arrive(Wish("b"))
    w.arrive(Wish("c"))
    assert phases(w)["c"] is Phase.COLD, "b would have to wait for it as well"


def test_strict_first_come_first_served_swaps_whenever_the_head_wants_another() -> None:
    w = world("a", "b", fifo=True)
    tickets = [w.arrive(Wish(name)) for name in "ababbaaaab"]
    w.run_down()
    assert w.granted == tickets
    assert sum(model.tally.swaps for model in w.state.models.values()) == 5


def test_both_models_overloaded_take_turns_of_their_least_time() -> None:
    w = world("a", "b", slots=1, max_wait_s=1, min_resident_s=10, max_queue=1000)
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
    w = loaded(world("a", "b", slots=2, swap_batch=10_000, max_wait_s=20, max_queue=1000), "a")
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


# -- failures


def test_a_crash_is_one_restart_for_all_who_wait() -> None:
    w = loaded(world("a"), "a")
    w.crash("a")
    tickets = [w.arrive(Wish("a")) for _ in range(2)]
    w.advance(1)
    w.ready("a")
    assert w.running == tickets
    assert w.state.models["a"].tally.restarts[Cause.CRASH] == 1


def test_a_request_that_kills_the_engine_twice_is_quarantined_and_others_go_on() -> None:
    w = loaded(world("a"), "a")
    killer, innocent = Wish("a", "k", fingerprint=b"k"), Wish("a", "i", fingerprint=b"i")
    w.arrive(killer)
    w.arrive(innocent)
    w.crash("a")
    w.advance(2)
    again = [w.arrive(innocent), w.arrive(killer)]
    other = w.arrive(Wish("a"))
    w.ready("a")
    assert w.running == again[:1], "suspects run alone, one after the other, before anybody else"
    w.finish(again[0])
    assert w.running == again[1:]
    w.crash("a")
    w.advance(10)
    w.ready("a")
    assert w.running == [other]
    third = w.arrive(killer)
    assert w.refused == [(third, "quarantined")]
    assert w.arrive(innocent) in w.running
    w.advance(700)
    assert w.arrive(killer) in w.waiting + w.running, "in time it may try again"


def test_a_suspect_does_not_stand_behind_those_who_wait_for_it() -> None:
    w = loaded(world("a"), "a")
    bad = Wish("a", fingerprint=b"k")
    w.arrive(bad)
    w.crash("a")
    other, suspect = w.arrive(Wish("a")), w.arrive(bad)
    w.advance(2)
    w.ready("a")
    assert w.running == [suspect]
    w.finish(suspect)
    assert w.running == [other]


def test_an_open_breaker_refuses_with_the_rest_of_its_time() -> None:
    w = world("a")
    w.arrive(Wish("a"))
    for _ in range(10):
        w.crash("a", Cause.START_FAILED)
        w.advance(35)
    assert w.refused[0][1] == "engine_down"


def test_an_engine_that_fails_time_and_again_is_put_to_the_test() -> None:
    w = loaded(world("a"), "a")
    model = w.state.models["a"]
    for _ in range(4):
        w.finish(w.arrive(Wish("a")), Outcome.FAILED)
    assert model.n_failed == 4
    w.finish(w.arrive(Wish("a")), Outcome.FAILED)
    assert model.n_failed == 0, "examined, and counted anew"


# -- configuration


def test_a_new_configuration_restarts_only_what_starts_differently() -> None:
    w = loaded(world("a", "b", memory_mib={"a": 40, "b": 40}), "a", "b")
    running = w.arrive(Wish("a"))
    made = {name: engine.profile for name, engine in w.engines.items()}
    w.configure({"a": changed(made["a"], max_queue=1), "b": changed(made["b"], context=512)}, 100)
    assert phases(w)["a"] is Phase.READY
    assert running in w.running
    w.memory_back("b")
    assert phases(w)["b"] is Phase.LOADING
    assert w.engines["b"].profile.context == 512


def test_a_profile_that_is_gone_drains_and_is_forgotten() -> None:
    w = loaded(world("a", "b", memory_mib={"a": 40, "b": 40}), "a", "b")
    running = w.arrive(Wish("b"))
    w.configure({"a": w.engines["a"].profile}, 100)
    assert running in w.running
    w.finish(running)
    w.memory_back("b")
    assert list(w.engines) == list(w.state.models) == ["a"]


def test_closing_refuses_who_waits_and_drains_who_runs() -> None:
    w = loaded(world("a", slots=1), "a")
    running, waiting = w.arrive(Wish("a")), w.arrive(Wish("a"))
    w.close()
    assert w.refused == [(waiting, "shutting_down")]
    assert phases(w)["a"] is Phase.DRAINING
    w.finish(running)
    assert phases(w)["a"] is Phase.COLD
    late = w.arrive(Wish("a"))
    assert w.refused[-1] == (late, "shutting_down")


def test_an_idle_engine_goes_after_its_time_and_reading_status_does_not_keep_it() -> None:
    w = loaded(world("a", idle_ttl_s=10), "a")
    w.advance(9)
    assert phases(w)["a"] is Phase.READY
    w.advance(1.5)
    assert (phases(w)["a"], w.engines["a"].machine.cause) == (Phase.COLD, Cause.IDLE)
    assert isinstance(w.engines["a"].machine, life.Machine)

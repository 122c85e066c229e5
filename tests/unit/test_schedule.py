"""Who is served, and who is told no: the scheduler's policy, one rule at a time."""

from __future__ import annotations

from collections import Counter

from garra.bill import HOST
from garra.spec import Cause, Phase
from garra.supervisor import machine as life
from garra.supervisor.queue import Ticket
from garra.traffic import Outcome, Priority, Wish
from tests.world import World, changed
from tests.worlds import loaded, phases, world_of

# -- slots and bounds


def test_no_more_than_the_slots_are_dispatched_and_the_rest_can_still_leave() -> None:
    w = loaded(world_of("a"), "a")
    tickets = [w.arrive(Wish("a")) for _ in range(5)]
    assert w.running == tickets[:2]
    w.leave(tickets[2])
    w.finish(tickets[0])
    assert w.running == [tickets[1], tickets[3]]


def test_the_slot_of_a_client_that_left_is_busy_until_the_engine_says_otherwise() -> None:
    w = loaded(world_of("a"), "a")
    first, _, third = (w.arrive(Wish("a")) for _ in range(3))
    w.leave(first)
    assert third not in w.running
    w.look_at_slots("a")
    assert third in w.running


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    w = loaded(world_of("a", max_queue=3, slots=1), "a")
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
    w = loaded(world_of("a", slots=1, queue_timeout_s=50), "a")
    w.arrive(Wish("a"))
    late = w.arrive(Wish("a"))
    w.advance(49)
    assert not w.refused
    w.advance(2)
    assert w.refused == [(late, "queue_timeout")]


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    w = world_of("a", memory_mib={"a": 101})
    ticket = w.arrive(Wish("a"))
    assert w.refused == [(ticket, "does_not_fit")]


# -- whose turn it is


def test_interactive_goes_first_and_batch_still_moves() -> None:
    w = loaded(world_of("a", slots=1, max_wait_s=10, max_queue=1000), "a")
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
    w = loaded(world_of("a", slots=1, max_queue=10_000), "a")
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
    w = loaded(world_of("a", slots=1, max_queue=1000), "a")
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
    w = loaded(world_of("a", slots=1, max_queue=1000), "a")
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
    w = loaded(world_of("a", slots=2, mode="low_latency"), "a")
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
    w = loaded(world_of("a", slots=3, mode="low_latency"), "a")
    batch = [w.arrive(Wish("a", priority=Priority.BATCH)) for _ in range(5)]
    assert w.running == batch[:2]
    assert w.arrive(Wish("a")) in w.running


# -- failures


def test_a_crash_is_one_restart_for_all_who_wait() -> None:
    w = loaded(world_of("a"), "a")
    w.crash("a")
    tickets = [w.arrive(Wish("a")) for _ in range(2)]
    w.advance(1)
    w.ready("a")
    assert w.running == tickets
    assert w.state.models["a"].tally.restarts[Cause.CRASH] == 1


def test_a_request_that_kills_the_engine_twice_is_quarantined_and_others_go_on() -> None:
    w = loaded(world_of("a"), "a")
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
    w = loaded(world_of("a"), "a")
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
    w = world_of("a")
    w.arrive(Wish("a"))
    for _ in range(10):
        w.crash("a", Cause.START_FAILED)
        w.advance(35)
    assert w.refused[0][1] == "engine_down"


def test_an_engine_that_fails_time_and_again_is_put_to_the_test() -> None:
    w = loaded(world_of("a"), "a")
    model = w.state.models["a"]
    for _ in range(4):
        w.finish(w.arrive(Wish("a")), Outcome.FAILED)
    assert model.n_failed == 4
    w.finish(w.arrive(Wish("a")), Outcome.FAILED)
    assert model.n_failed == 0, "examined, and counted anew"


# -- configuration


def test_a_new_configuration_restarts_only_what_starts_differently() -> None:
    w = loaded(world_of("a", "b", memory_mib={"a": 40, "b": 40}), "a", "b")
    running = w.arrive(Wish("a"))
    made = {name: engine.profile for name, engine in w.engines.items()}
    w.configure({"a": changed(made["a"], max_queue=1), "b": changed(made["b"], context=512)}, {HOST: 100})
    assert phases(w)["a"] is Phase.READY
    assert running in w.running
    w.memory_back("b")
    assert phases(w)["b"] is Phase.LOADING
    assert w.engines["b"].profile.context == 512


def test_a_profile_that_is_gone_drains_and_is_forgotten() -> None:
    w = loaded(world_of("a", "b", memory_mib={"a": 40, "b": 40}), "a", "b")
    running = w.arrive(Wish("b"))
    w.configure({"a": w.engines["a"].profile}, {HOST: 100})
    assert running in w.running
    w.finish(running)
    w.memory_back("b")
    assert list(w.engines) == list(w.state.models) == ["a"]


def test_closing_refuses_who_waits_and_drains_who_runs() -> None:
    w = loaded(world_of("a", slots=1), "a")
    running, waiting = w.arrive(Wish("a")), w.arrive(Wish("a"))
    w.close()
    assert w.refused == [(waiting, "shutting_down")]
    assert phases(w)["a"] is Phase.DRAINING
    w.finish(running)
    assert phases(w)["a"] is Phase.COLD
    late = w.arrive(Wish("a"))
    assert w.refused[-1] == (late, "shutting_down")


def test_an_idle_engine_goes_after_its_time_and_reading_status_does_not_keep_it() -> None:
    w = loaded(world_of("a", idle_ttl_s=10), "a")
    w.advance(9)
    assert phases(w)["a"] is Phase.READY
    w.advance(1.5)
    assert (phases(w)["a"], w.engines["a"].machine.cause) == (Phase.COLD, Cause.IDLE)
    assert isinstance(w.engines["a"].machine, life.Machine)

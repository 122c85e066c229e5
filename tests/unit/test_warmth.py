"""Who begins like what a free slot holds goes first, and nobody pays for it with more than a few turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from garra.supervisor.queue import MOST_OVERTAKEN, Queue, Ticket
from garra.supervisor.warmth import Warmth
from garra.traffic import Priority, Wish

A, B, C = (1, 2, 3, 4), (5, 6, 7, 8), (9,)


def anyone(ticket: Ticket) -> bool:
    return True


def queue_of(*wishes: Wish) -> tuple[Queue, list[Ticket]]:
    queue, tickets = Queue(), [Ticket(wish, float(n), n) for n, wish in enumerate(wishes)]
    for ticket in tickets:
        queue.add(ticket)
    return queue, tickets


def wish(chain: tuple[int, ...] = (), client: str = "x", priority: Priority = Priority.NORMAL) -> Wish:
    return Wish("demo", client, "", priority, 256.0, chain=chain)


def test_slots_are_known_by_what_they_answered() -> None:
    warm = Warmth()
    for chain in (A, B):
        warm.take(chain)
    for chain in (A, B):
        warm.give(chain, 2)
    assert warm.suits((*A, 99))
    assert warm.suits(B[:3])
    assert not warm.suits(C)
    assert not warm.suits(())
    assert not warm.suits((*A[:1], 10, 11, 12)), "a little in common is no reason"
    warm.take((*A, 99))
    assert not warm.suits(A), "that slot is taken"
    warm.take(C)
    assert warm.free == [], "and this one had to be overwritten"


def test_who_has_a_slot_that_holds_his_prompt_goes_first() -> None:
    queue, (cold, warm) = queue_of(wish(A, "one"), wish(B, "two"))
    assert queue.best(5.0, 30.0, anyone) is cold
    assert queue.best(5.0, 30.0, anyone, lambda ticket: ticket is warm) is warm
    assert queue.best(5.0, 30.0, lambda ticket: ticket is not warm, lambda ticket: ticket is warm) is cold


def test_also_in_the_same_lane() -> None:
    queue, tickets = queue_of(*(wish(A) for _ in range(5)), wish(B))
    assert queue.best(5.0, 30.0, anyone, lambda ticket: ticket is tickets[5]) is tickets[5]


def test_only_a_few_times() -> None:
    queue, tickets = queue_of(wish(A, "one"), *(wish(B, "two") for _ in range(20)))
    served = []
    for _ in range(8):
        chosen = queue.best(5.0, 30.0, anyone, lambda ticket: ticket.wish.chain == B)
        assert chosen is not None
        queue.remove(chosen)
        served.append(chosen.number)
    assert served.index(tickets[0].number) == MOST_OVERTAKEN


def test_never_across_classes_nor_for_who_had_more() -> None:
    queue, (first, batch) = queue_of(wish(A, "one"), wish(B, "two", Priority.BATCH))
    assert queue.best(5.0, 30.0, anyone, lambda ticket: ticket is batch) is first
    queue, (first, greedy) = queue_of(wish(A, "one"), wish(B, "two"))
    queue.shares.charge(Wish("demo", "two", tokens=10_000.0))
    assert queue.best(5.0, 30.0, anyone, lambda ticket: ticket is greedy) is first


@given(st.lists(st.tuples(st.sampled_from([A, B, C, ()]), st.sampled_from("xyz")), max_size=60), st.randoms())
def test_everybody_is_served_and_nobody_is_overtaken_more(waiting: list[tuple[object, str]], chance: object) -> None:
    queue, tickets = queue_of(*(wish(chain, client) for chain, client in waiting))  # type: ignore[arg-type]
    served: list[Ticket] = []
    while queue.n:
        chosen = queue.best(5.0, 1e9, anyone, lambda ticket: chance.random() < 0.5)  # type: ignore[attr-defined]
        assert chosen is not None
        queue.remove(chosen)
        queue.charge(chosen, 5.0)
        served.append(chosen)
    assert {ticket.number for ticket in served} == {ticket.number for ticket in tickets}
    assert all(ticket.overtaken <= MOST_OVERTAKEN for ticket in tickets)

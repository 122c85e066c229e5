"""Who waits for one model, and whose turn it is. Pure.

Inside a class the turn goes by tokens, not by requests: start-time fair queueing (Goyal, Vin, Cheng, 1996) with a
request's tokens as its length. A client's tag is the number of tokens it was served; whoever has the smallest goes
first. A client that comes back starts at the tag of the one last served, so that being away earns nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from garra.traffic import Priority, Wish

_FORGET_ABOVE = 512
MOST_OVERTAKEN = 4
"""So many may go ahead of one whose turn it is, because their prompt is in a slot already."""
_LOOK_AHEAD = 8
"""In each lane."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request on its way to a slot. `number` counts arrivals; a retry keeps its first one."""

    wish: Wish
    arrived: float
    number: int = 0
    granted: float | None = None
    answering: bool = False
    """The first byte of its answer came."""
    solo: bool = False
    """Suspected of having killed an engine: it runs alone."""
    overtaken: int = 0
    """How often another one went first because a free slot held its prompt."""


class Shares:
    """Tokens served to each client, and to the parts of those that have any."""

    __slots__ = ("_now", "_parts", "_tags")

    def __init__(self) -> None:
        self._now = 0.0
        self._tags: dict[str, float] = {}
        self._parts: dict[str, Shares] = {}

    def key(self, wish: Wish) -> tuple[float, float]:
        """Sorts requests by whose turn it is: where each would start."""
        parts = self._parts.get(wish.client)
        return self._start(wish.client), parts._start(wish.share) if parts is not None else 0.0

    def charge(self, wish: Wish) -> None:
        """A request of this client begins: its expected tokens count at once."""
        self._begin(wish.client, wish.tokens)
        if wish.share or wish.client in self._parts:
            if wish.client not in self._parts:
                self._parts[wish.client] = Shares()
            self._parts[wish.client]._begin(wish.share, wish.tokens)

    def correct(self, wish: Wish, tokens: float) -> None:
        """It has ended, and took `tokens`."""
        if wish.client in self._tags:
            self._tags[wish.client] += tokens - wish.tokens
        parts = self._parts.get(wish.client)
        if parts is not None and wish.share in parts._tags:
            parts._tags[wish.share] += tokens - wish.tokens

    def _start(self, name: str) -> float:
        return max(self._tags.get(name, 0.0), self._now)

    def _begin(self, name: str, tokens: float) -> None:
        tag = self._tags.get(name, 0.0)
        self._now = max(self._now, tag)
        self._tags[name] = self._now + tokens
        if len(self._tags) > _FORGET_ABOVE:  # whoever is not ahead of now is as good as new
            self._tags = {key: tag for key, tag in self._tags.items() if tag > self._now}
            self._parts = {key: part for key, part in self._parts.items() if key in self._tags}


LaneKey = tuple[Priority, str, str, bool]


@dataclass(slots=True)
class Queue:
    """Waiting tickets: a lane per (class, client, part), first come, first served in each. Suspects have their own."""

    shares: Shares = field(default_factory=Shares)
    lanes: dict[LaneKey, deque[Ticket]] = field(default_factory=dict)
    n: int = 0
    n_solo: int = 0
    last_turn: dict[Priority, float] = field(default_factory=dict)
    """When each class was last served."""

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Ticket]:
        for lane in self.lanes.values():
            yield from lane

    def add(self, ticket: Ticket) -> None:
        """At the end of its lane; one that comes again stands where it stood."""
        lane = self.lanes.setdefault(_lane_of(ticket), deque())
        if lane and lane[-1].number > ticket.number:
            place = next(i for i, other in enumerate(lane) if other.number > ticket.number)
            lane.insert(place, ticket)
        else:
            lane.append(ticket)
        self.n += 1
        self.n_solo += ticket.solo

    def remove(self, ticket: Ticket) -> bool:
        """Whether it was there."""
        key = _lane_of(ticket)
        lane = self.lanes.get(key)
        if lane is None or ticket not in lane:
            return False
        lane.remove(ticket)
        if not lane:
            del self.lanes[key]
        self.n -= 1
        self.n_solo -= ticket.solo
        return True

    def oldest(self) -> Ticket | None:
        """The one that came first."""
        return min((lane[0] for lane in self.lanes.values()), key=lambda ticket: ticket.number, default=None)

    def best(
        self,
        now: float,
        aging_s: float,
        allowed: Callable[[Ticket], bool],
        suits: Callable[[Ticket], bool] = lambda ticket: False,
    ) -> Ticket | None:
        """Whose turn it is among the lanes' heads that are `allowed`.

        1. A class that had no turn for `aging_s` although it waited. 2. interactive, normal, batch. 3. The client, then
        its part, with the fewest tokens. 4. First come, first served. 5. One whose prompt a free slot holds (`suits`)
        may go ahead of it: of the same class, of a client that is hardly ahead, and only a few times.
        """
        first = self._first(now, aging_s, allowed)
        if first is None or first.overtaken >= MOST_OVERTAKEN or suits(first):
            return first
        behind = self.shares.key(first.wish)[0] + first.wish.tokens
        for lane in self.lanes.values():
            if lane[0].wish.priority != first.wish.priority or self.shares.key(lane[0].wish)[0] > behind:
                continue
            for ticket in itertools.islice(lane, _LOOK_AHEAD):
                if ticket is not first and allowed(ticket) and suits(ticket):
                    first.overtaken += 1
                    return ticket
        return first

    def _first(self, now: float, aging_s: float, allowed: Callable[[Ticket], bool]) -> Ticket | None:
        heads = [lane[0] for lane in self.lanes.values() if allowed(lane[0])]
        if len(heads) <= 1:
            return heads[0] if heads else None
        chosen = self._class(heads, now, aging_s)
        shares = self.shares
        return min(
            (ticket for ticket in heads if ticket.wish.priority == chosen),
            key=lambda ticket: (shares.key(ticket.wish), ticket.number),
        )

    def _class(self, heads: list[Ticket], now: float, aging_s: float) -> Priority:
        waiting: dict[Priority, float] = {}
        for ticket in heads:
            since = waiting.get(ticket.wish.priority, now)
            waiting[ticket.wish.priority] = min(since, ticket.arrived)
        if len(waiting) == 1:
            return next(iter(waiting))
        patience = {name: now - max(since, self.last_turn.get(name, since)) for name, since in waiting.items()}
        longest = max(patience, key=lambda name: patience[name])
        return longest if patience[longest] >= aging_s else min(waiting)

    def charge(self, ticket: Ticket, now: float) -> None:
        """It gets a slot: its class had a turn, and its client its tokens."""
        self.last_turn[ticket.wish.priority] = now
        self.shares.charge(ticket.wish)

    def position(self, ticket: Ticket) -> int:
        """How many would be served before it if nobody else came, plus one; a guess where clients share."""
        key = (ticket.wish.priority, ticket.number)
        return 1 + sum(1 for other in self if (other.wish.priority, other.number) < key)


def _lane_of(ticket: Ticket) -> LaneKey:
    wish = ticket.wish
    return wish.priority, wish.client, wish.share, ticket.solo

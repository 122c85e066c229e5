"""One model as the scheduler sees it. Pure data with the questions everybody asks of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from garra.bill import Claim, Need, Place
from garra.snapshot import EngineStatus
from garra.spec import Cause, Phase, Profile
from garra.supervisor.queue import Queue, Ticket
from garra.supervisor.warmth import Warmth
from garra.tally import Tally
from garra.traffic import Outcome, Priority, Waited

DOWN = (Phase.COLD, Phase.FAILED)
_LEAVING = (Phase.DRAINING, Phase.STOPPING, Phase.COLD, Phase.FAILED)
CROWD_S = 60.0
"""How long a client counts as being about."""
_LEARN = 0.3
_SHORTEST_TTL_S = 0.001
_UNKNOWN_LOAD_S = 10.0
_UNKNOWN_SERVICE_S = 5.0


@dataclass(slots=True, eq=False)
class LoadWish:
    """Somebody wants the engine itself: a person, a start, a changed profile. `tried`: a start was made for it."""

    profile: str
    arrived: float
    number: int = 0
    tried: bool = False


@dataclass(slots=True, eq=False)
class Model:
    """Queue, leases and place in memory of one profile."""

    profile: Profile
    phase: Phase = Phase.COLD
    cause: Cause | None = None
    detail: str = ""
    since: float = 0.0
    """When it entered its phase."""
    slots: int = 0
    queue: Queue = field(default_factory=Queue)
    wishes: list[LoadWish] = field(default_factory=list)
    leases: set[Ticket] = field(default_factory=set)
    n_solo_leases: int = 0
    lingering: int = 0
    """Slots whose client left and that the engine has not given back yet."""
    need: Need | None = None
    """What it takes, as planned; None until that is known: nothing is placed before."""
    surveying: bool = False
    """Its need is being found out."""
    held: Claim = field(default_factory=dict)
    """Its part of the budget, from the decision to load until its memory is measurably back."""
    place: Place = field(default_factory=Place)
    """Where its engine was put, and how much it may take there."""
    returning: bool = False
    """The process is gone, its memory is not back yet."""
    pinned: bool = False
    removed: bool = False
    """No profile of that name any more: it leaves and is forgotten."""
    idle_since: float = 0.0
    keep_s: float | None = None
    """How long whoever used it last would like it to stay; negative: for ever."""
    n_taken: int = 0
    """Leases given since it became READY."""
    contested: int | None = None
    """Leases given since another model began to want its place; None: none does."""
    closed_to: int | None = None
    """Tickets from this number on are not served: another model's turn is next."""
    swapping: bool = False
    """Others leave, or have left, for its next load."""
    left_at: float = float("-inf")
    """When its engine last left memory."""
    load_began: float = 0.0
    load_s: float | None = None
    service_s: float | None = None
    n_failed: int = 0
    """5xx answers in a row."""
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each client, with its part, last asked."""
    tally: Tally = field(default_factory=Tally)
    warmth: Warmth = field(default_factory=Warmth)
    """What its free slots hold."""

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def calm(self) -> bool:
        """READY, and nobody waits for it or for its place."""
        return self.phase is Phase.READY and not self.queue.n and self.contested is None and self.closed_to is None

    @property
    def wanted(self) -> bool:
        """Somebody waits for it."""
        return bool(self.queue.n or self.wishes)

    @property
    def busy(self) -> int:
        """Slots that are not free."""
        return len(self.leases) + self.lingering

    @property
    def n_answering(self) -> int:
        """Leases that surely are in a slot."""
        return sum(ticket.answering for ticket in self.leases)

    @property
    def leaving(self) -> bool:
        """It holds memory that will be back without further doing."""
        return bool(self.held) and self.phase in _LEAVING

    @property
    def ttl_s(self) -> float:
        """After so long without use it leaves; 0: never. A client's wish counts within the profile's limits: it is not
        kept longer than `idle_ttl_s`, nor sent away before `min_resident_s`."""
        limit_s = self.profile.idle_ttl_s
        if self.keep_s is None or self.keep_s < 0:
            return limit_s
        wish_s = max(self.keep_s, self.profile.min_resident_s, _SHORTEST_TTL_S)
        return min(wish_s, limit_s) if limit_s else wish_s

    def stays_s(self, now: float) -> float | None:
        """Seconds until it leaves for being idle; None: it does not."""
        if self.pinned or not self.ttl_s or self.phase is not Phase.READY:
            return None
        return max(0.0, self.ttl_s - (0.0 if self.leases else now - self.idle_since))

    def onto(self, status: EngineStatus, now: float) -> EngineStatus:
        """The engine's status with who uses it and who waits."""
        oldest = self.queue.oldest()
        return replace(
            status,
            leases=len(self.leases),
            lingering=self.lingering,
            stays_s=self.stays_s(now),
            waiting=self.queue.n,
            oldest_wait_s=now - oldest.arrived if oldest is not None else None,
            max_queue=self.profile.max_queue,
            pinned=self.pinned,
        )

    @property
    def reload_s(self) -> float:
        """What loading it again would cost."""
        return self.load_s or _UNKNOWN_LOAD_S

    def first(self) -> Ticket | LoadWish | None:
        """Who has waited longest for it."""
        waiting = [*self.wishes[:1]] if self.wishes else []
        oldest = self.queue.oldest()
        if oldest is not None:
            waiting.append(oldest)  # type: ignore[arg-type]
        return min(waiting, key=lambda one: one.number, default=None)

    def overdue_at(self) -> float:
        """From when on whoever is in its way must yield; infinity when nobody waits."""
        first = self.first()
        return first.arrived + self.profile.max_wait_s if first is not None else float("inf")

    def retry_after_s(self) -> int:
        """Seconds in which its queue is served, by the measured time a request holds a slot; 1 to 60."""
        each_s = self.service_s or _UNKNOWN_SERVICE_S
        rounds = (self.queue.n + self.busy) / max(1, self.slots or self.profile.slots)
        loading_s = 0.0 if self.phase is Phase.READY else self.reload_s
        return max(1, min(60, round(loading_s + rounds * each_s + 0.5)))

    def has_room_for(self, ticket: Ticket, now: float) -> bool:
        """Whether it may have a slot this moment, given that nobody waits."""
        if len(self.leases) + self.lingering >= self.slots:
            return False
        if self.profile.mode == "low_latency" or self.n_solo_leases:
            self.see(ticket)
            return self.may_take(ticket, now)
        return True

    def lease(self, ticket: Ticket, now: float) -> None:
        """The ticket has a slot."""
        ticket.granted = now
        self.leases.add(ticket)
        self.n_taken += 1
        self.warmth.take(ticket.wish.chain)
        if ticket.solo:
            self.n_solo_leases += 1
        if self.contested is not None:
            self.contested += 1
        self.queue.charge(ticket, now)
        self.tally.wait.add(now - ticket.arrived)

    def complete(self, ticket: Ticket, tokens: float | None, now: float) -> None:
        """A whole answer was given."""
        self.release(ticket, Outcome.COMPLETE, tokens, now)
        self.n_failed = 0
        self.service_s = _learned(self.service_s, now - (ticket.granted or now))

    def release(self, ticket: Ticket, outcome: Outcome, tokens: float | None, now: float) -> None:
        """The lease is over."""
        self.leases.discard(ticket)
        self.warmth.give(ticket.wish.chain, self.slots)
        if ticket.solo:
            self.n_solo_leases -= 1
        self.keep_s = ticket.wish.keep_s
        if not self.leases:
            self.idle_since = now
        self.tally.outcomes[outcome] += 1
        if tokens is not None:
            self.queue.shares.correct(ticket.wish, tokens)

    def waited(self, ticket: Ticket) -> Waited:
        """What a ticket that has its slot waited for."""
        granted = ticket.granted if ticket.granted is not None else ticket.arrived
        load_s = max(0.0, min(granted, self.since) - max(ticket.arrived, self.load_began))
        return Waited(granted - ticket.arrived - load_s, load_s)

    def see(self, ticket: Ticket) -> None:
        """Remember who asks, to know whether the last slot must be kept for others."""
        key = (ticket.wish.client, ticket.wish.share)
        self.seen[key] = ticket.arrived
        if len(self.seen) > 256:
            self.seen = {k: at for k, at in self.seen.items() if ticket.arrived - at < CROWD_S}

    def may_take(self, ticket: Ticket, now: float) -> bool:
        """Whether a free slot may go to this ticket.

        1. Not when another model's turn is next. 2. A suspect runs alone, and before all others. 3. `low_latency` keeps
        its last slot free of batches, 4. and of clients that hold one already, while others are about.
        """
        if self.closed_to is not None and ticket.number >= self.closed_to:
            return False
        if self.queue.n_solo or self.n_solo_leases:
            return ticket.solo and not self.leases
        if self.profile.mode != "low_latency" or self.slots < 2:
            return True
        wish = ticket.wish
        if wish.priority is Priority.BATCH:
            n_batch = sum(lease.wish.priority is Priority.BATCH for lease in self.leases)
            if n_batch >= self.slots - 1:
                return False
        if self.slots - self.busy > 1:
            return True
        recent = [key for key, at in self.seen.items() if now - at < CROWD_S]
        if len({client for client, _ in recent}) > 1:
            return all(lease.wish.client != wish.client for lease in self.leases)
        if len(recent) > 1:
            return all(lease.wish.share != wish.share for lease in self.leases)
        return True

    def learn_load(self, seconds: float) -> None:
        """A load took so long."""
        self.load_s = _learned(self.load_s, seconds)


def _learned(known: float | None, seconds: float) -> float:
    """A moving average."""
    return seconds if known is None else known + _LEARN * (seconds - known)

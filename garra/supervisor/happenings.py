"""What happens to the fleet, and what it is told to do: the words of `schedule.decide`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from garra.bill import Claim, Need, Place
from garra.errors import GarraError
from garra.spec import Cause, Phase, Policy, Profile
from garra.supervisor.model import LoadWish
from garra.supervisor.queue import Ticket
from garra.traffic import Outcome

# ---- events; `at` is the time in seconds on the fleet's clock


@dataclass(slots=True)
class Arrived:
    """A request wants a slot; `again` after its engine died before it answered."""

    ticket: Ticket
    at: float
    again: bool = False


@dataclass(slots=True)
class Left:
    """Its client left while it waited."""

    ticket: Ticket
    at: float


@dataclass(slots=True)
class Ended:
    """A lease ended. `tokens`: what the engine said it took, or None."""

    ticket: Ticket
    outcome: Outcome
    at: float
    tokens: float | None = None
    fingerprint: bytes | None = None
    """With DIED: what was being asked when the engine died."""
    asked: bool = True
    """The engine saw the request."""


@dataclass(slots=True)
class Returned:
    """A granted slot was gone before it was used: the ticket waits again, where it stood."""

    ticket: Ticket
    at: float


@dataclass(slots=True)
class Insisted:
    """Somebody wants the engine loaded, whatever its breaker says."""

    wish: LoadWish
    at: float


@dataclass(slots=True)
class Dismissed:
    """A person wants the engine unloaded."""

    profile: str
    at: float


@dataclass(slots=True)
class Pinned:
    """A person pins the model, or lets it go."""

    profile: str
    pinned: bool
    at: float


@dataclass(slots=True)
class Reserved:
    """A person wants the machine without any engine for a while; `on` False: garra may go on."""

    on: bool
    at: float


@dataclass(slots=True)
class PhaseChanged:
    """The engine's life went on. `slots` counts when READY."""

    profile: str
    phase: Phase
    at: float
    cause: Cause | None = None
    detail: str = ""
    slots: int = 0


@dataclass(slots=True)
class SlotsSeen:
    """The engine said how many slots are busy, while `n_answering` leases had their first byte."""

    profile: str
    n_busy: int
    n_answering: int
    at: float


@dataclass(slots=True)
class MemoryBack:
    """What the engine held is free again, measurably."""

    profile: str
    at: float


@dataclass(slots=True)
class Surveyed:
    """What the model takes is known, or known anew."""

    profile: str
    need: Need
    at: float


@dataclass(slots=True)
class Planned:
    """The engine that is being started takes this and no more."""

    profile: str
    claim: Claim
    at: float


@dataclass(slots=True)
class Budgeted:
    """All engines together may take this from now on: others took memory, or gave it back."""

    budget: Claim
    at: float


@dataclass(slots=True)
class Renewed:
    """There is another engine build: whatever is loaded starts again with it, once its answers have ended."""

    at: float


@dataclass(slots=True)
class Configured:
    """These are the profiles from now on."""

    profiles: Mapping[str, Profile]
    policy: Policy
    at: float


@dataclass(slots=True)
class Closing:
    """garra stops."""

    at: float


@dataclass(slots=True)
class Ticked:
    """The moment asked for with `Wake` has come."""

    at: float


Event = (
    Arrived | Left | Ended | Returned | Insisted | Dismissed | Pinned | PhaseChanged | SlotsSeen | MemoryBack
    | Surveyed | Planned | Budgeted | Renewed | Reserved | Configured | Closing | Ticked
)  # fmt: skip


# ---- effects


@dataclass(slots=True)
class Grant:
    """The ticket has a slot."""

    ticket: Ticket


@dataclass(slots=True)
class Refuse:
    """The ticket, or the wish for a load, is answered with this error."""

    who: Ticket | LoadWish
    error: GarraError


@dataclass(slots=True)
class Fulfil:
    """The engine somebody insisted on is READY."""

    wish: LoadWish


@dataclass(slots=True)
class Load:
    """Start the engine; `insist`: even if it is backing off or broken."""

    profile: str
    place: Place
    insist: bool = False


@dataclass(slots=True)
class Survey:
    """Post `Surveyed` once it is known what the model takes."""

    profile: str


@dataclass(slots=True)
class Stop:
    """Let the engine go."""

    profile: str
    cause: Cause


@dataclass(slots=True)
class Drained:
    """An engine that is to go has no lease left."""

    profile: str


@dataclass(slots=True)
class Reclaim:
    """Post `MemoryBack` once the memory of the engine that just ended is free."""

    profile: str


@dataclass(slots=True)
class ReadAhead:
    """The model is loaded next: bring its file into the page cache."""

    profile: str


@dataclass(slots=True)
class WatchSlots:
    """Post `SlotsSeen` until the slots whose clients left are free."""

    profile: str


@dataclass(slots=True)
class Examine:
    """Let the engine prove with one token that it still can."""

    profile: str
    n_failed: int


@dataclass(slots=True)
class Reprofile:
    """The engine's next start uses this profile."""

    profile: Profile


@dataclass(slots=True)
class Forget:
    """The model is gone for good."""

    profile: str


@dataclass(slots=True)
class Wake:
    """Post `Ticked` at this time; it replaces an earlier one."""

    at: float


Effect = (
    Grant | Refuse | Fulfil | Survey | Load | Stop | Drained | Reclaim | ReadAhead | WatchSlots | Examine | Reprofile
    | Forget | Wake
)  # fmt: skip

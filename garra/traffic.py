"""Words about requests: who asks, for what, and how it ended. Frozen, stdlib types only; units stand in the names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from garra.spec import Phase


class Priority(enum.IntEnum):
    """The class of a request; a smaller number goes first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client known by its API key."""

    name: str
    priority: Priority
    """The best class its requests may have."""
    profiles: frozenset[str] = frozenset()
    """What it may use; empty: everything."""
    rpm: int | None = None
    """Requests a minute."""
    admin: bool = False
    """It may load, unload and bring models, and remove them."""
    digest: bytes = b""
    """SHA-256 of the key itself."""


class Wish(NamedTuple):
    """What a request asks of the fleet: a slot of this profile, on this client's account."""

    profile: str
    client: str = "local"
    """Whose share it is: a key's name or an address."""
    share: str = ""
    """A part of that client's share."""
    priority: Priority = Priority.NORMAL
    tokens: float = 256.0
    """How many tokens it will cost, as far as one can tell; corrected when it ends."""
    fingerprint: bytes | None = None
    """Identity of the request's content, given while something is under suspicion."""
    keep_s: float | None = None
    """How long the model should stay when nobody uses it, as far as its profile allows; negative: for ever."""
    chain: tuple[int, ...] = ()
    """What it has in common with other requests (`prompts/chain.py`); empty: short, or nobody wants to know."""


@dataclass(frozen=True, slots=True)
class WaitNews:
    """What somebody who waits for a slot may be told."""

    position: int
    """1: the next one."""
    phase: Phase
    load_fraction: float | None = None


class Waited(NamedTuple):
    """What a request waited for before it had its slot, in seconds."""

    queue_s: float = 0.0
    """For its turn; the load not counted."""
    load_s: float = 0.0
    """For the engine to become READY."""


class Usage(NamedTuple):
    """What an answer took, by the engine's own count."""

    n_prompt: int
    """Prompt tokens it had to process; those from the cache cost nothing."""
    n_decoded: int
    prompt_ms: float
    decode_ms: float = 0.0
    """0 where the engine did not tell."""
    n_cached: int = 0
    """Prompt tokens that were there already."""
    n_drafted: int = 0
    n_accepted: int = 0
    slot: int | None = None
    """Which one answered, where the engine told."""

    @property
    def tokens(self) -> float:
        return float(self.n_prompt + self.n_decoded)


class Outcome(enum.StrEnum):
    """How a request ended; the label of a metric."""

    COMPLETE = enum.auto()
    """A whole answer."""
    ERROR = enum.auto()
    """The engine answered with a 4xx: the request itself is wrong."""
    FAILED = enum.auto()
    """The engine answered with a 5xx."""
    DIED = enum.auto()
    """The engine died or stalled under it."""
    LEFT = enum.auto()
    """The client left, waiting or reading."""
    FULL = enum.auto()
    """Refused: the queue was full."""
    TIMEOUT = enum.auto()
    """Refused: it waited for `queue_timeout_s`."""
    DOWN = enum.auto()
    """Refused: the engine cannot be had."""
    QUARANTINED = enum.auto()
    """Refused: it killed the engine twice."""

"""Words about prompts that outlive their engine. Frozen, stdlib types only; units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Persist = Literal["off", "swap", "always"]
"""`swap`: while garra runs; `always`: until the profile changes."""
Chain = tuple[int, ...]
"""A request's text in equal pieces: each number stands for the text from the beginning to the end of its piece, so that
two requests share as many pieces as their chains have numbers in common from the start."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one slot of a running engine holds."""

    slot: int
    n_tokens: int
    chain: Chain = ()
    """Of the last request it answered; empty: not known."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a save or a restore came to, as the engine tells it."""

    n_tokens: int
    n_bytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class Kept:
    """One slot's content on disk, as its own file beside it says."""

    name: str
    """Of the file; `NAME.checkpoints` stands beside it where the model has any."""
    profile: str
    fingerprint: str
    """Of all that must be equal for an engine to take it back."""
    n_tokens: int
    chain: Chain
    sizes: dict[str, int]
    """Bytes by file."""
    digests: dict[str, str]
    """SHA-256 by file."""
    worth_s: float
    """Seconds of prefill it saves."""
    kept_at: str
    """RFC 3339."""
    used_at: str
    label: str = ""
    """What a person called it, where they warmed it: such a one is never thrown away for room."""

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def pinned(self) -> bool:
        return bool(self.label)


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured of one profile; 0 where nothing was yet."""

    prefill_s: float = 0.0
    """Per token, in batches."""
    token_bytes: float = 0.0
    """Of a file, per token."""
    save_s: float = 0.0
    """Per byte."""
    restore_s: float = 0.0
    """Per byte, the check of the file counted."""


NOTHING_MEASURED = Costs()

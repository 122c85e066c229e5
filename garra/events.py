"""Facts for people: what the fleet does, as `garra events` tells it while it happens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that happened."""

    kind: str
    """`phase`, `swap`, `refused`, `pinned`, `drafting`, `reserved` or `configured`."""
    profile: str = ""
    detail: str = ""

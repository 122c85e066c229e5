"""What the terminal view shows beside the snapshot itself."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Page(enum.StrEnum):
    """What is on the screen."""

    OVERVIEW = enum.auto()
    LOG = enum.auto()
    HELP = enum.auto()


@dataclass(frozen=True, slots=True)
class Told:
    """One fact of the event feed."""

    at: str
    """Local time, HH:MM:SS."""
    kind: str
    profile: str
    detail: str


@dataclass(frozen=True, slots=True)
class Watched:
    """What whoever watches has seen and chosen."""

    clock: str = ""
    """Local time, HH:MM:SS."""
    chosen: int = 0
    """Which profile, counted from 0."""
    page: Page = Page.OVERVIEW
    pace: Mapping[str, float] = field(default_factory=dict)
    """Tokens per second now, by profile."""
    events: tuple[Told, ...] = ()
    """The newest last."""
    log: tuple[str, ...] = ()
    """The last lines of the chosen profile's log."""
    notice: str = ""
    """What came of the last key."""
    silent_s: float | None = None
    """For how long garra has not answered; None: it does."""

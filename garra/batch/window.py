"""How many requests one server is given at once: as many as it takes, found by asking for more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FEWEST = 1.0
_SPARE = 2
"""More than its slots, so that none is idle while an answer travels."""
UNKNOWN_SLOTS = 4
MOST = 64.0
_LONGEST_S = 8.0
"""A server that was away is found again within this."""


@dataclass(slots=True)
class Window:
    """Additive increase, multiplicative decrease, around the number of slots where that is known."""

    slots: int | None
    limit: float = 0.0
    ceiling: float = 0.0
    failures: int = 0
    """In a row."""
    exact: bool = False
    """A person said how many: none to spare."""

    def __post_init__(self) -> None:
        self.limit = float((self.slots or UNKNOWN_SLOTS) + (0 if self.exact else _SPARE))
        self.ceiling = self.limit if self.slots else MOST

    @property
    def n(self) -> int:
        """Requests that may be in flight."""
        return max(1, int(self.limit))

    def answered(self) -> None:
        """It took one and answered."""
        self.failures = 0
        self.limit = min(self.ceiling, self.limit + 1 / self.limit)

    def refused(self) -> None:
        """It said that it has too many."""
        self.limit = max(_FEWEST, self.limit * 0.7)

    def failed(self) -> float:
        """It broke; seconds to leave it alone."""
        self.failures += 1
        return float(min(_LONGEST_S, 0.25 * 2 ** min(self.failures, 8)))

"""Tokens per second now, from how a count of tokens grew. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from garra.snapshot import Snapshot

_WINDOW_S = 4.0


class Pace:
    """Fed with every snapshot."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def note(self, snapshot: Snapshot, now: float) -> Mapping[str, float]:
        """Rates by profile, over the last seconds. A request that ends early takes its tokens out of the count: what
        shrinks starts anew."""
        rates = {}
        for report in snapshot.profiles:
            name = report.engine.profile
            seen = self._seen.setdefault(name, deque())
            if seen and report.decoded < seen[-1][1]:
                seen.clear()
            seen.append((now, report.decoded))
            while len(seen) > 2 and now - seen[0][0] > _WINDOW_S:
                seen.popleft()
            (began, before), (ended, after) = seen[0], seen[-1]
            rates[name] = (after - before) / (ended - began) if ended > began else 0.0
        return rates

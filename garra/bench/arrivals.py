"""When requests of an open loop are sent: seconds from its beginning. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from garra.bench.words import Below

Pattern = Literal["poisson", "constant", "burst"]
_FINE = 1 << 30


def arrivals(pattern: Pattern, rate: float, n: int, below: Below) -> list[float]:
    """`n` moments at `rate` requests per second on average.

    poisson: independent of each other (exponential gaps). constant: evenly. burst: groups of ten at once.
    """
    match pattern:
        case "constant":
            return [number / rate for number in range(n)]
        case "burst":
            return [number // 10 * 10 / rate for number in range(n)]
        case "poisson":
            at, moments = 0.0, []
            for _ in range(n):
                moments.append(at)
                at += -math.log(1 - below(_FINE) / _FINE) / rate
            return moments


def replayed(times_s: Sequence[float], speed: float) -> list[float]:
    """Recorded moments from their first one on; `speed` 2 is twice as fast."""
    begin = times_s[0] if times_s else 0.0
    return [(at - begin) / speed for at in times_s]

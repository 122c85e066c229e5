"""What is counted about one profile, for `/metrics` and `status`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from garra.spec import Cause
from garra.traffic import Outcome

WAIT_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TELLING_TOKENS = 16
"""Shorter answers tell little about speed."""
_LEARN = 0.2
LOAD_BOUNDS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound; the last counts those above all."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.total += value
        for place, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[place] += 1
                return
        self.counts[-1] += 1


@dataclass(slots=True)
class Tally:
    """Counters of one profile since garra started."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    """Seconds from a request's arrival to its slot."""
    load: Histogram = field(default_factory=lambda: Histogram(LOAD_BOUNDS_S))
    """Seconds from a start to READY."""
    stops: Counter[Cause] = field(default_factory=Counter)
    """Engines that left memory, by cause."""
    restarts: Counter[Cause] = field(default_factory=Counter)
    """Starts after a failure, by its cause."""
    swaps: int = 0
    """Loads for which another model had to leave."""
    retries: int = 0
    """Requests asked once more because the engine died before it answered."""
    truncated: int = 0
    """Conversations that lost their middle to fit."""
    decode_tok_s: float | None = None
    """A moving average over answers of some length."""
    tokens: float = 0.0
    """Tokens processed and generated, as far as the engine told."""

    def learn_decode(self, n_decoded: int, decode_ms: float) -> None:
        """An answer was decoded; its first token came with the prompt."""
        if n_decoded >= _TELLING_TOKENS and decode_ms > 0:
            tok_s = (n_decoded - 1) * 1e3 / decode_ms
            known = self.decode_tok_s
            self.decode_tok_s = tok_s if known is None else known + _LEARN * (tok_s - known)

"""What is counted about one profile, for `/metrics` and `status`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from garra.spec import Cause
from garra.traffic import Outcome, Usage

WAIT_BOUNDS_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TELLING_TOKENS = 16
"""Shorter answers tell little about speed."""
_LEARN = 0.2
LOAD_BOUNDS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
E2E_BOUNDS_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 600.0, 1920.0)
TPOT_BOUNDS_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
_RECENT = 512


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
        self.counts[bisect_left(self.bounds, value)] += 1


class Past(NamedTuple):
    """A whole answer of the last while."""

    at: float
    n_decoded: int
    ttft_s: float
    tpot_s: float | None


@dataclass(slots=True)
class PromptTally:
    """What was done with one profile's prompts while its engine was away, since garra started."""

    events: Counter[str] = field(default_factory=Counter)
    """`saved`, `restored`; `verified`: found by an answer; `missed`: computed again; `failed`."""
    n_bytes: int = 0
    """Written."""
    n_tokens: int = 0
    """Of prefill avoided."""
    save_s: float = 0.0
    restore_s: float = 0.0


PROMPT_EVENTS = ("saved", "restored", "verified", "missed", "failed")


@dataclass(slots=True)
class Tally:
    """Counters of one profile since garra started."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    """Seconds from a request's arrival to its slot."""
    load: Histogram = field(default_factory=lambda: Histogram(LOAD_BOUNDS_S))
    """Seconds from a start to READY."""
    last_load_s: float | None = None
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
    mended: Counter[str] = field(default_factory=Counter)
    """Mendings of requests and answers, by name."""
    decode_tok_s: float | None = None
    """A moving average over answers of some length."""
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    """Seconds from arrival to the first token: the wait and the prefill."""
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    decode: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_BOUNDS_S))
    n_prompt: int = 0
    """Prompt tokens, those from the cache included."""
    n_cached: int = 0
    n_decoded: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    recent: deque[Past] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def note(self, usage: Usage, wait_s: float, e2e_s: float, now: float) -> None:
        """A whole answer: what it took, by the engine's count, and how long its client had to wait for it."""
        self.n_prompt += usage.n_prompt + usage.n_cached
        self.n_cached += usage.n_cached
        self.n_decoded += usage.n_decoded
        self.n_drafted += usage.n_drafted
        self.n_accepted += usage.n_accepted
        prefill_s = usage.prompt_ms / 1e3
        self.e2e.add(e2e_s)
        if not prefill_s:
            return  # the engine did not tell its timings
        self.ttft.add(wait_s + prefill_s)
        self.prefill.add(prefill_s)
        tpot_s = None
        if usage.n_decoded > 1 and usage.decode_ms:
            self.decode.add(usage.decode_ms / 1e3)
            tpot_s = usage.decode_ms / 1e3 / (usage.n_decoded - 1)
            self.tpot.add(tpot_s)
            self._learn_decode(usage.n_decoded, usage.decode_ms)
        self.recent.append(Past(now, usage.n_decoded, wait_s + prefill_s, tpot_s))

    def _learn_decode(self, n_decoded: int, decode_ms: float) -> None:
        """An answer was decoded; its first token came with the prompt."""
        if n_decoded >= _TELLING_TOKENS:
            tok_s = (n_decoded - 1) * 1e3 / decode_ms
            known = self.decode_tok_s
            self.decode_tok_s = tok_s if known is None else known + _LEARN * (tok_s - known)

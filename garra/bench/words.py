"""The nouns of measuring. Seconds unless a name says otherwise; stdlib types only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Messages = tuple[Mapping[str, Any], ...]
"""As OpenAI's chat API takes them."""
Below = Callable[[int], int]
"""A seeded whole number from 0 up to, not including, its argument."""
Ending = Literal["ok", "error", "refused", "cut", "cancelled"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation; the answers before it are put in between as they came."""

    new: Messages
    """What is said since the last answer."""
    max_tokens: int
    n_prompt: int | None = None
    """Prompt tokens it was made to have, by the server's own count; None: whatever it has."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation of one client."""

    turns: tuple[Turn, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of each request, such as `response_format`."""
    cancel_after: int | None = None
    """The client leaves after so many tokens."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it, raw: everything else is computed from these."""

    workload: str
    load: str
    """`c4`: closed loop, 4 clients; `poisson 2/s`: open loop."""
    round: int
    began_s: float
    """Since the cell began."""
    stamps_s: tuple[float, ...]
    """Since the request was sent: when each token-bearing chunk arrived."""
    e2e_s: float
    ending: Ending
    status: int = 0
    n_prompt: int | None = None
    """By the server's count, tokens from its cache included."""
    n_wanted: int | None = None
    n_cached: int | None = None
    n_output: int | None = None
    """By the server's count."""
    finish: str = ""
    error: str = ""
    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    """The server's own word on the parts of TTFT; None where it does not tell."""
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Sent to first token-bearing chunk."""
        return self.stamps_s[0] if self.stamps_s else None

    @property
    def n_tokens(self) -> int:
        """Output tokens: as the server counts, else one per chunk."""
        return self.n_output if self.n_output is not None else len(self.stamps_s)

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (output tokens - 1); None below two tokens, or where all came in one chunk."""
        if len(self.stamps_s) < 2 or self.n_tokens < 2:
            return None
        return (self.stamps_s[-1] - self.stamps_s[0]) / (self.n_tokens - 1)

    @property
    def itls_s(self) -> list[float]:
        """Gaps between token-bearing chunks. Two tokens of one chunk are no gap: see TPOT."""
        return [later - earlier for earlier, later in zip(self.stamps_s, self.stamps_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer must keep to count as good; milliseconds, as vLLM's goodput takes them."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def kept_by(self, sample: Sample) -> bool:
        """Whether this answer was whole and within all that is asked."""
        if sample.ending != "ok":
            return False
        seen = ((self.ttft_ms, sample.ttft_s), (self.tpot_ms, sample.tpot_s), (self.e2el_ms, sample.e2e_s))
        return all(limit is None or (value is not None and value * 1e3 <= limit) for limit, value in seen)


@dataclass(frozen=True, slots=True)
class Cell:
    """All samples of one workload under one load."""

    workload: str
    load: str
    concurrency: int | None
    """Clients at once, in a closed loop."""
    rate: float | None
    """Requests per second, in an open loop."""
    samples: tuple[Sample, ...]
    durations_s: tuple[float, ...]
    """Of each round, first request to last byte."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """What the machine did meanwhile: RAM, VRAM, power, temperature, throttling."""

    @property
    def name(self) -> str:
        return f"{self.workload} {self.load}"


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark: what was measured where, and every raw value."""

    id: str
    at: str
    label: str
    host: Mapping[str, Any]
    engine: str
    """Name and build of what answered."""
    model: str
    settings: Mapping[str, Any]
    """How it was served and asked: context, slots, cache types; seed, warm-up, lengths, loop."""
    cells: tuple[Cell, ...]
    load_ms: tuple[float, ...] = ()
    """Cold loads: from the wish to READY."""
    swap_ms: tuple[float, ...] = ()
    """First token of a model whose place another one held, less its warm TTFT."""
